"""Puts the typed actions and observations of an OpenEnv environment into text, by its JSON schemas.

An action that needs a single field is written as the value of that field: text as it is, any other
value as JSON. Any other action is a JSON object. An observation is the text of its only field, or a
JSON object.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from envs import requirements
from r3l.errors import UserError

BASE = ("metadata", "reward", "done")
"""Fields that every observation may have. `metadata` is a field of every action too."""
DEPTH = 8
"""How many references of a schema are followed, one after the other."""
EXAMPLES = {"integer": 1, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}
TOOL_EXAMPLE = '{"tool_name": "…", "arguments": {…}}'


class ActionTexts:
    """How a policy writes actions of the JSON schema `schema`, or calls of `tools`.

    Fields with a fixed value are filled in. `field`: the field whose value alone can be an action;
    "" if an action needs several fields or calls a tool.
    """

    def __init__(self, schema: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.tools, self.defs = list(tools), schema.get("$defs", {})
        whole = plain_type(schema, schema)
        known = _fields(whole, schema)
        self.forms = [plain_type(form, schema) for form in _options(whole)]
        self.fixed = {name: field["const"] for name, field in known.items() if "const" in field}
        self.fields = {name: field for name, field in known.items() if name not in self.fixed}
        self.required = [name for name in whole.get("required", []) if name in self.fields]
        single = self.required if len(self.fields) > 1 else list(self.fields)
        self.field = single[0] if len(single) == 1 and not tools else ""
        self.is_text = self.fields.get(self.field, {}).get("type") == "string"

    @property
    def rule(self) -> str:
        """What the system prompt says about actions."""
        if self.tools:
            return f"Tools: {as_json(self.tools)}"
        known = {name: _untitled(field) for name, field in self.fields.items()}
        more = f"; further types: {as_json(_untitled(self.defs, named=True))}" if self.defs else ""
        if self.forms and not known:
            forms = [_untitled(_fields(form, form)) for form in self.forms]
            return f"An action is a JSON object with the fields of one of {as_json(forms)}{more}"
        if not self.field:
            need = f"; required: {', '.join(self.required)}" if self.required else ""
            return f"An action is a JSON object with the fields {as_json(known)}{need}{more}"
        kind = "the plain text" if self.is_text else "the JSON value"
        one = (
            f"An action is {kind} of the field {as_json({self.field: known.pop(self.field)})}{more}"
        )
        return f"{one}; a JSON object may also give {as_json(known)}" if known else one

    @property
    def example(self) -> str:
        """An action as the policy writes it."""
        if self.tools:
            return TOOL_EXAMPLE
        if self.field:
            value = _example(self.fields[self.field])
            return str(value) if self.is_text else as_json(value)
        if self.forms and not self.fields:
            form = self.forms[0]
            fields, need = _fields(form, form), form.get("required")
            said = {n: f for n, f in fields.items() if not need or n in need or "const" in f}
            return as_json({name: _example(field) for name, field in said.items()})
        return as_json({name: _example(self.fields[name]) for name in self.required or self.fields})

    def read(self, text: str) -> dict[str, Any] | None:
        """Returns the action that a text contains, or None if it contains none."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        given = value if isinstance(value, dict) else None
        inner = None if given is None else given.get(self.field, given)
        if self.field and (inner is given or (self.is_text and not isinstance(inner, str))):
            return self.fixed | {self.field: text if self.is_text else value}
        if given is None:
            return None
        return {"type": "call_tool"} | given if self.tools else self.fixed | given


class ObservationTexts:
    """How the policy reads the observations of a server.

    `schemas`: what the server publishes at /schema. `check`: whether an observation must fit its
    schema. Raises UserError for a faulty schema.
    """

    def __init__(self, name: str, schemas: Mapping[str, Any], check: bool) -> None:
        self.validators: dict[str, Any] = {}
        library = requirements.package(name, "jsonschema", "openenv")
        nowhere = import_module("referencing").Registry()  # follows no reference to other places
        for kind, schema in schemas.items():
            try:
                library.Draft202012Validator.check_schema(schema)
            except (library.SchemaError, RecursionError) as error:
                raise UserError(
                    f"env {name}: its /schema has a faulty {kind} "
                    f"({str(error).splitlines()[0]:.200}); correct the types of its environment"
                ) from None
        for call, kind in (("step", "observation"), ("reset", "reset_observation")):
            schema = schemas.get(kind) or schemas["observation"]
            if check:
                self.validators[call] = library.Draft202012Validator(schema, registry=nowhere)

    def misfit(self, call: str, data: Mapping[str, Any]) -> str:
        """Returns how the observation in an answer differs from the server's schema; "" if it fits.
        Further fields are allowed. An observation with only metadata fits, because OpenEnv's own
        environments answer a reset in this way."""
        seen = data["observation"]
        if call not in self.validators or set(seen) <= {"metadata"}:
            return ""
        whole = {**seen, "reward": data["reward"], "done": data["done"]}
        try:
            for error in self.validators[call].iter_errors(whole):
                if error.validator != "additionalProperties":
                    place = ".".join(map(str, error.absolute_path))
                    return f"{place}: {error.message}" if place else str(error.message)
        except Exception as error:  # of a schema that refers to nothing, or has a faulty pattern
            return f"its schema cannot be applied ({type(error).__name__}: {error})"
        return ""

    def text(self, observation: Mapping[str, Any]) -> str:
        """Returns an observation as the policy reads it: without empty fields, and without metadata
        if there is anything else."""
        if "tool_name" in observation:
            observation = _of_tool(observation)
        shown = {name: value for name, value in observation.items() if value not in EMPTY}
        if len(shown) > 1:
            shown.pop("metadata", None)
        (only,) = shown.values() if len(shown) == 1 else (None,)
        return only if isinstance(only, str) else json.dumps(shown, ensure_ascii=False)


EMPTY: tuple[Any, ...] = (None, "", {}, [])


def plain_type(field: object, root: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a field's schema with its references to `root` resolved and an alternative of null
    removed."""
    for _ in range(DEPTH):
        if not isinstance(field, dict):
            return {}
        said = {name: value for name, value in field.items() if name not in ("$ref", "anyOf")}
        place = str(field.get("$ref", ""))
        options = _options({"anyOf": field.get("anyOf")})
        if place.startswith("#/$defs/"):
            field = {**root.get("$defs", {}).get(place.removeprefix("#/$defs/"), {}), **said}
        elif len(options) == 1:
            field = {**options[0], **said}
        else:
            break
    return dict(field) if isinstance(field, dict) else {}


def _fields(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the fields of a schema that a policy may give."""
    fields = schema.get("properties", {})
    return {name: plain_type(field, root) for name, field in fields.items() if name != "metadata"}


def _options(schema: Mapping[str, Any]) -> list[Any]:
    """Returns the alternatives of a union, except null."""
    found = schema.get("anyOf") or schema.get("oneOf") or []
    return [option for option in found if option != {"type": "null"}]


def _of_tool(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the observation of a tool call without the call's own name, and with MCP's texts
    themselves instead of their list."""
    shown = {name: value for name, value in observation.items() if name != "tool_name"}
    result = shown.get("result")
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list) and content:
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if all(isinstance(text, str) for text in texts):
            shown["result"] = "\n".join(map(str, texts))
    return shown


def _example(field: Mapping[str, Any]) -> Any:
    if "const" in field:
        return field["const"]
    if options := field.get("enum"):
        return options[0]
    return EXAMPLES.get(str(field.get("type")), "…")


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _untitled(schema: Any, named: bool = False) -> Any:
    """Returns a schema without the titles that pydantic gives to all parts. `named`: whether the
    keys are names of fields or types, which stay."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _untitled(value, named=not named and key in ("properties", "$defs"))
        for key, value in schema.items()
        if named or key != "title"
    }

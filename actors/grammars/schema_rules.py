"""Refuses a JSON schema that breaks a rule of JSON Schema, or that no finite text can satisfy.

    {"$ref": "#"}    {"enum": []}    {"type": []}    {"minItems": 3, "maxItems": 2}

With such a schema, an engine would be left without an allowed token, or would compile forever. If
this module cannot tell, the schema passes, and actors.grammars.grammar_compiler tries it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

LONGEST = 1 << 18
"""The most characters of a schema as JSON."""
MOST_PARTS = 20_000
"""The most schemas within a schema."""
MOST_PASSES = 64
TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
ONE = (
    "items additionalProperties additionalItems unevaluatedItems unevaluatedProperties contains "
    "propertyNames not if then else"
).split()
"""Keywords whose value is a schema."""
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
RANGES = (("minItems", "maxItems"), ("minLength", "maxLength"), ("minProperties", "maxProperties"))

Part = tuple[str, Any]
"""A schema within a schema: its JSON pointer, such as #/properties/a, and the schema."""


def check_schema(schema: Any) -> str:
    """Returns why a schema cannot be followed, or "" if this module finds no reason."""
    if len(json.dumps(schema)) > LONGEST:
        return f"it has more than {LONGEST:,} characters; shorten it"
    parts: dict[str, Any] = {}
    waiting: list[Part] = [("#", schema)]
    while waiting:
        where, part = waiting.pop()
        if len(parts) >= MOST_PARTS:
            return f"it has more than {MOST_PARTS:,} schemas; split it"
        if wrong := _wrong(part):
            return f"{where[:200]}: {wrong}"
        parts[where] = part
        waiting += _inside(where, part)
    return _without_end(parts)


def schemas_in(tag: Any) -> Iterator[Any]:
    """Yields the JSON schemas in a structural tag."""
    waiting = [tag]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for name, inner in value.items():
                if name in ("json_schema", "schema"):
                    yield inner
                else:
                    waiting.append(inner)
        elif isinstance(value, list):
            waiting += value


def _wrong(part: Any) -> str:
    """Returns what is wrong with a schema itself, or ""."""
    if isinstance(part, bool):
        return ""
    if not isinstance(part, dict):
        return f"a schema must be an object, true or false, not {part!r:.80}"
    if "type" in part:
        kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
        if not kinds or any(kind not in TYPES for kind in kinds):
            return f"type {part['type']!r:.80} must be one or several of {', '.join(TYPES)}"
    return _wrong_keywords(part)


def _wrong_keywords(part: dict[str, Any]) -> str:
    for name in MAPS:
        if not isinstance(part.get(name, {}), dict):
            return f"{name} must be an object"
    for name in (*LISTS, "enum"):
        if name in part and (not isinstance(part[name], list) or not part[name]):
            return f"{name} must be a list of at least one value"
    required = part.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return "required must be a list of names"
    for least, most in RANGES:
        low, high = part.get(least, 0), part.get(most)
        for name, value in ((least, low), (most, 0 if high is None else high)):
            whole = type(value) is int or (type(value) is float and value.is_integer())
            if not whole or value < 0:
                return f"{name} {value!r:.80} must be a whole number from 0 on"
        if high is not None and low > high:
            return f"{least} {low} is above {most} {high}"
    return ""


def _inside(where: str, part: Any) -> Iterator[Part]:
    """Yields the schemas directly inside a schema."""
    if not isinstance(part, dict):
        return
    for name in ONE:
        value = part.get(name)
        if isinstance(value, list) and name == "items":  # of older drafts
            yield from ((f"{where}/{name}/{n}", inner) for n, inner in enumerate(value))
        elif value is not None:
            yield f"{where}/{name}", value
    for name in LISTS:
        yield from ((f"{where}/{name}/{n}", inner) for n, inner in enumerate(part.get(name, ())))
    for name in MAPS:
        for key, inner in part.get(name, {}).items():
            yield f"{where}/{name}/{key.replace('~', '~0').replace('/', '~1')}", inner


def _without_end(parts: dict[str, Any]) -> str:
    """Returns a sentence if no finite text fits the whole schema, otherwise ""."""
    finite: set[str] = set()
    for _ in range(MOST_PASSES):
        # From the inside out: parts are listed after those that hold them.
        found = {where for where in reversed(parts) if where not in finite
                 and _is_finite(where, parts[where], finite, parts)}  # fmt: skip
        if not found:
            break
        finite |= found
    else:
        return ""  # references in so many steps that the rule is not decided here
    if "#" in finite:
        return ""
    return (
        "no finite text fits it: it holds itself, false, or an impossible part where a value is "
        "required; make that part optional, or give it another form with anyOf"
    )


def _is_finite(where: str, part: Any, finite: set[str], parts: dict[str, Any]) -> bool:
    """Whether a finite text fits a schema, given the parts that are known to have one."""
    if isinstance(part, bool):
        return part
    target = part.get("$ref")
    if isinstance(target, str) and target in parts and target not in finite:
        return False
    for name in ("anyOf", "oneOf"):
        if name in part and not any(
            f"{where}/{name}/{n}" in finite for n in range(len(part[name]))
        ):
            return False
    if any(f"{where}/allOf/{n}" not in finite for n in range(len(part.get("allOf", ())))):
        return False
    if "enum" in part or "const" in part:
        return True
    kinds = part.get("type") or _kinds(part)
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return any(_fits(kind, where, part, finite) for kind in kinds)


def _kinds(part: dict[str, Any]) -> list[str]:
    """The types that a schema without `type` means to an engine."""
    if {"properties", "required", "additionalProperties", "minProperties"} & part.keys():
        return ["object"]
    if {"items", "prefixItems", "minItems"} & part.keys():
        return ["array"]
    return ["string"]


def _fits(kind: str, where: str, part: dict[str, Any], finite: set[str]) -> bool:
    """Whether some finite value of a type fits the schema's keywords for this type."""
    if kind == "object":
        own = part.get("properties", {})
        for name in part.get("required", ()):
            key = name.replace("~", "~0").replace("/", "~1")
            place = f"{where}/properties/{key}" if name in own else f"{where}/additionalProperties"
            known = name in own or "additionalProperties" in part
            if known and "patternProperties" not in part and place not in finite:
                return False
    if kind == "array" and part.get("minItems", 0):
        first = part.get("prefixItems") or (part["items"] if isinstance(part.get("items"), list)
                                            else [])  # fmt: skip
        name = "prefixItems" if "prefixItems" in part else "items"
        needed = int(part["minItems"])
        if any(f"{where}/{name}/{n}" not in finite for n in range(min(needed, len(first)))):
            return False
        if needed > len(first) and isinstance(part.get("items"), dict | bool):
            return f"{where}/items" in finite
    return True

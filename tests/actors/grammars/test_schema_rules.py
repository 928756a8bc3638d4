"""Schemas that no finite text fits, and those that some text fits."""

import json
from typing import Any

import pytest

from actors.grammars.schema_rules import LONGEST, check_schema, schemas_in
from r3l.rollout.reflection import json_schema

TREE = {
    "type": "object",
    "properties": {"left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "n": {"type": "integer"}},
    "required": ["left", "n"],
}
RIGHT: list[Any] = [
    True,
    {},
    {"type": "object"},
    {"type": ["string", "null"]},
    {"enum": [1, "a"]},
    {"const": None},
    TREE,
    {"type": "object", "properties": {"next": {"$ref": "#"}}},
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "array", "items": False},
    {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "string"}}},
    {"$ref": "elsewhere.json"},
    {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
    {"type": ["object", "string"], "properties": {"a": False}, "required": ["a"]},
    {"type": "object", "properties": {"a/b": {"type": "string"}}, "required": ["a/b"]},
    json_schema(12),
]
WRONG: list[tuple[Any, str]] = [
    (False, "no finite text"),
    ({"$ref": "#"}, "no finite text"),
    ({"allOf": [{"$ref": "#"}]}, "no finite text"),
    ({"anyOf": [{"$ref": "#"}, False]}, "no finite text"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
     "no finite text"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no finite text"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "no finite text"),
    ({"type": "object", "additionalProperties": False, "required": ["a"]}, "no finite text"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "no finite text"),
    ({"type": "array", "prefixItems": [False], "minItems": 1}, "no finite text"),
    ({"type": []}, "#: type .* must be one or several"),
    ({"type": "what"}, "#: type"),
    ({"type": [["string"]]}, "#: type"),
    ({"properties": {"a": {"type": {"b": 1}}}}, "#/properties/a: type"),
    ({"enum": []}, "#: enum"),
    ({"anyOf": []}, "#: anyOf"),
    ({"properties": [1]}, "#: properties"),
    ({"required": "a"}, "#: required"),
    ({"items": 5}, "#/items: a schema must be"),
    ({"type": "array", "minItems": -1}, "#: minItems -1"),
    ({"type": "array", "minItems": "3"}, "#: minItems '3'"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "#: minItems 3 is above"),
    ({"enum": ["x" * LONGEST]}, "more than 262,144 characters"),
    ({"anyOf": [{"type": "string"}] * 15_000 + [{}] * 6000}, "more than"),
    ([], "#: a schema must be"),
]  # fmt: skip


@pytest.mark.parametrize("schema", RIGHT, ids=lambda schema: json.dumps(schema)[:60])
def test_a_schema_that_some_text_fits_passes(schema: Any) -> None:
    assert check_schema(schema) == ""


@pytest.mark.parametrize(("schema", "why"), WRONG, ids=lambda value: json.dumps(value)[:60])
def test_a_schema_that_no_text_fits_is_refused_by_its_place(schema: Any, why: str) -> None:
    import re

    assert re.search(why, check_schema(schema))


def test_references_in_many_steps_are_left_to_the_engine() -> None:
    chain: dict[str, Any] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(500)}
    chain["a500"] = {"type": "string"}
    assert check_schema({"$ref": "#/$defs/a0", "$defs": chain}) == ""


def test_the_schemas_of_tools_are_found() -> None:
    tag = {"format": {"tags": [{"begin": "<", "content": {"json_schema": {"type": "a"}}}, 1]}}
    assert [*schemas_in(tag)] == [{"type": "a"}]
    assert [*schemas_in({"structures": [{"schema": True}]})] == [True]

"""A value that is made up for a schema fits it, and what cannot be made up is named."""

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from actors.grammars.schema_example import NoExample, example
from actors.grammars.schema_fit import fits
from tests.actors.grammars.test_schema_fit import CITY, SCHEMAS

STEP = {"type": "object", "properties": {"text": {"type": "string"}, "kind": {"const": "a"}},
        "required": ["text", "kind"]}  # fmt: skip
TREE = {"type": "object", "required": ["left", "more"], "properties": {
    "left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]},
    "more": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        CITY,
        {"$defs": {"Step": STEP}, "type": "object", "required": ["best", "steps"], "properties": {
            "best": {"$ref": "#/$defs/Step"},
            "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}}}},
        {"$defs": {"Tree": TREE}, "$ref": "#/$defs/Tree"},
        {"type": "integer", "minimum": 5, "maximum": 10},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
        {"type": "integer", "minimum": 10, "multipleOf": 7},
        {"type": ["string", "null"]},
        {"type": "string", "minLength": 30, "maxLength": 31},
        {"type": "string", "maxLength": 2},
        {"type": "array", "items": {"type": "string"}, "minItems": 3, "uniqueItems": True},
        {"type": "array", "prefixItems": [{"type": "null"}, {"type": "integer"}]},
        {"allOf": [STEP, {"properties": {"n": {"type": "integer"}}, "required": ["n"]}]},
        {"allOf": [{"$ref": "#/$defs/Step"}], "$defs": {"Step": STEP}, "description": "as"},
        {"anyOf": [{"type": "integer", "minimum": 2, "maximum": 1}, {"type": "boolean"}]},
        {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"},
        {"type": "string", "format": "date-time"},
        {"type": "object", "required": ["a"], "minProperties": 2},
        {},
    ],
)  # fmt: skip
def test_a_value_that_is_made_up_fits(schema: Any) -> None:
    jsonschema.Draft202012Validator(schema).validate(example(schema))


def test_an_object_has_all_its_properties_of_which_the_first_choices_are_made() -> None:
    shape = {"a": {"anyOf": [{"type": "null"}]}, "b": {"type": "array", "items": {}}}
    assert example({"type": "object", "properties": shape}) == {"a": None, "b": ["text"]}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no value is made up for {'type': 'int"),
        ({"$ref": "#/$defs/none"}, "the reference '#/$defs/none' names nothing"),
        ({"$ref": "#"}, "# contains itself"),
        ({"type": "string", "pattern": "^(one|two) three$"}, "pattern"),
        ({"type": "string", "pattern": "("}, "is not a regular expression"),
        ({"type": "object", "properties": 5}, "it is not a JSON schema"),
        ({"type": 5}, "no value is made up"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "it allows no value"),
    ],
)
def test_what_cannot_be_made_up_is_named(schema: Any, why: str) -> None:
    with pytest.raises(NoExample, match=re.escape(why)):
        example(schema)


@given(SCHEMAS)
def test_every_value_that_is_made_up_is_valid(schema: Any) -> None:
    try:
        value = example(schema)
    except NoExample:
        return
    assert fits(json.dumps(value), schema)

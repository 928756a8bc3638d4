"""A text fits a schema only where this is sure, and an agent's schema cannot make it dear."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.grammars import schema_fit
from actors.grammars.schema_fit import fits

CITY = {
    "$defs": {"Place": {"type": "object", "properties": {"name": {"type": "string"}}}},
    "title": "City",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "size": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None},
        "kind": {"enum": ["town", "village"]},
        "near": {"type": "array", "items": {"$ref": "#/$defs/Place"}, "maxItems": 2},
    },
    "required": ["name"],
    "additionalProperties": False,
}
"""As pydantic writes them."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Rome"}', True),
        ('\n{"kind":"town",  "size": null, "name":"R", "near": [{"name": "Ostia"}]}\n', True),
        ('{"name": "Rome", "size": 3}', True),
        ('{"name": ""}', False),
        ('{"size": 3}', False),
        ('{"name": "Rome", "size": -3}', False),
        ('{"name": "Rome", "size": true}', False),
        ('{"name": "Rome", "size": 3.0}', False),
        ('{"name": "Rome", "size": 3.5}', False),
        ('{"name": "Rome", "kind": "city"}', False),
        ('{"name": "Rome", "mayor": "Bo"}', False),
        ('{"name": "Rome", "near": [{"name": 1}]}', False),
        ('{"name": "Rome", "near": [{}, {}, {}]}', False),
        ('{"name": "Rome"} and more', False),
        ('```json\n{"name": "Rome"}\n```', False),
        ('{"name": "\\ud800"}', False),
        ("Rome", False),
        ("", False),
        ("[" * 100_000, False),
    ],
)
def test_a_text_fits_a_schema_as_a_client_would_say(text: str, expected: bool) -> None:
    assert fits(text, CITY) == expected


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "pattern": "a+"}, '"aa"'),
        ({"type": "string", "format": "date"}, '"2026-01-01"'),
        ({"not": {"type": "null"}}, "1"),
        ({"$ref": "https://elsewhere/schema"}, "1"),
        ({"$ref": "#/$defs/none"}, "1"),
        ({"$ref": "#"}, "1"),
        ({"$ref": "#name", "$defs": {"of": {"$anchor": "name", "type": "integer"}}}, "{}"),
        ({"$ref": "#/$defs/a%20b", "$defs": {"a%20b": {}, "a b": {"type": "integer"}}}, '"x"'),
        ({"required": [["a"]]}, "{}"),
        ({"oneOf": [{"const": [1]}, {"type": "array"}]}, "[1.0]"),
        ({"items": [{}]}, "[1]"),
        ({"type": "what"}, "1"),
        ({"type": "number"}, "NaN"),
        ("no schema", "1"),
        ({"allOf": []}, "1"),
    ],
)
def test_what_is_not_sure_does_not_fit(schema: Any, text: str) -> None:
    assert not fits(text, schema)


def test_a_branch_that_surely_fits_decides_over_one_that_is_not_known() -> None:
    dated = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}
    assert fits("null", dated) and not fits('"2026-01-01"', dated)


def test_a_schema_with_many_branches_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0
    spend = schema_fit._Check._spend

    def counted(self: Any, count: int) -> None:
        nonlocal checks
        checks += 1
        spend(self, count)

    monkeypatch.setattr(schema_fit._Check, "_spend", counted)
    schema: Any = {"type": "integer"}
    for _ in range(24):
        schema = {"allOf": [schema, schema]}
    assert not fits("1", schema)
    assert not fits(json.dumps([0] * 1000), {"items": {"enum": [*range(1, 1000), 0]}})
    assert checks < 3 * schema_fit.MOST_CHECKS


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.5, "", "a"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=6,
)
LEAVES = st.one_of(
    st.booleans(),
    st.builds(lambda kind: {"type": kind}, st.sampled_from(sorted(schema_fit.TYPES))),
    st.builds(lambda own: {"enum": own}, st.lists(VALUES, min_size=1, max_size=3)),
    st.builds(lambda own: {"const": own}, VALUES),
    st.builds(lambda name, n: {name: n}, st.sampled_from(sorted(schema_fit.LIMITS)),
              st.integers(0, 2)),
)  # fmt: skip
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda name, own: {name: own}, st.sampled_from(["anyOf", "oneOf", "allOf"]),
                  st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda own: {"items": own}, inner),
        st.builds(lambda own, more, need: {"properties": own, "additionalProperties": more,
                                           "required": need},
                  st.dictionaries(st.sampled_from("ab"), inner, max_size=2), inner,
                  st.lists(st.sampled_from("ab"), max_size=2, unique=True)),
    ),
    max_leaves=6,
)  # fmt: skip


@given(SCHEMAS, VALUES)
def test_what_fits_is_valid_in_the_reference_implementation(schema: Any, value: Any) -> None:
    valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert fits(json.dumps(value), schema) == valid

"""Actions and observations as text, by JSON schemas as pydantic writes them."""

from typing import Any

import pytest

from envs.adapters.openenv.schema_texts import ActionTexts, ObservationTexts, as_json, plain_type
from r3l.errors import UserError

TEXT = {"title": "Message", "type": "string", "description": "what you say"}
METADATA = {"additionalProperties": True, "type": "object"}


def action(*required: str, **fields: Any) -> ActionTexts:
    properties = {"metadata": METADATA} | fields
    return ActionTexts({"properties": properties, "required": list(required)})


def test_one_text_field_is_plain_text() -> None:
    said = action("message", message=TEXT)
    assert said.rule == (
        "An action is the plain text of the field "
        '{"message": {"type": "string", "description": "what you say"}}'
    )
    assert said.example == "…"
    assert said.read("hello") == {"message": "hello"}
    assert said.read("7") == {"message": "7"} and said.read("[1]") == {"message": "[1]"}
    assert said.read('{"a": 1}') == {"message": '{"a": 1}'}
    assert said.read('{"message": "hello"}') == {"message": "hello"}


def test_a_field_that_may_be_left_out_is_still_the_only_one() -> None:
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert action(message=optional).read("hello") == {"message": "hello"}


def test_other_single_values_are_json() -> None:
    said = action("n", n={"type": "integer"})
    assert said.rule == 'An action is the JSON value of the field {"n": {"type": "integer"}}'
    assert said.example == "1" and said.read("7") == {"n": 7}
    assert said.read("seven") == {"n": "seven"}  # which the server refuses in words
    assert action("at", at={"type": "array"}).read("[1, 2]") == {"at": [1, 2]}


def test_a_single_required_field_may_stand_for_the_action() -> None:
    said = action("code", code={"type": "string"}, limit={"type": "integer", "default": 3})
    assert said.rule.endswith(
        '; a JSON object may also give {"limit": {"type": "integer", "default": 3}}'
    )
    assert said.read("print(1)") == {"code": "print(1)"}
    assert said.read('{"code": "print(1)", "limit": 9}') == {"code": "print(1)", "limit": 9}


def test_several_fields_are_a_json_object() -> None:
    mark = {"$ref": "#/$defs/Mark"}
    said = ActionTexts(
        {
            "$defs": {"Mark": {"enum": ["x", "o"], "title": "Mark", "type": "string"}},
            "properties": {"row": {"type": "integer"}, "mark": mark, "metadata": METADATA},
            "required": ["row", "mark"],
        }
    )
    assert said.rule == (
        'An action is a JSON object with the fields {"row": {"type": "integer"}, "mark": '
        '{"enum": ["x", "o"], "type": "string"}}; required: row, mark; further types: '
        '{"Mark": {"enum": ["x", "o"], "type": "string"}}'
    )
    assert said.example == '{"row": 1, "mark": "x"}'
    assert said.read('{"row": 2}') == {"row": 2}
    assert said.read("2") is None and said.read("[2]") is None and said.read("[" * 9999) is None


def test_fields_with_a_fixed_value_are_filled_in() -> None:
    said = action("say", kind={"const": "say", "default": "say"}, say={"type": "string"})
    assert said.read("red") == {"kind": "say", "say": "red"}
    assert "kind" not in said.rule


def test_references_are_followed_and_never_for_ever() -> None:
    root = {
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"type": "string"}, "C": {"$ref": "#/$defs/C"}}
    }
    assert plain_type({"$ref": "#/$defs/A", "default": "x"}, root) == {
        "type": "string", "default": "x"
    }  # fmt: skip
    assert plain_type({"$ref": "#/$defs/C"}, root)["$ref"] == "#/$defs/C"
    assert plain_type({"$ref": "http://x/y"}, root) == {"$ref": "http://x/y"}
    assert plain_type(True, root) == {}


def seen(*required: str, check: bool = True, **fields: Any) -> ObservationTexts:
    schema = {
        "properties": fields, "required": list(required), "additionalProperties": False
    }  # fmt: skip
    return ObservationTexts("x", {"action": {}, "observation": schema, "state": {}}, check)


def test_an_observation_is_its_only_text_or_json_without_empty_fields() -> None:
    texts = seen()
    assert texts.text({"text": "hello", "left": [], "n": None, "metadata": {"n": 1}}) == "hello"
    assert texts.text({"n": 0, "over": False}) == '{"n": 0, "over": false}'
    assert texts.text({"n": 1, "text": "é"}) == '{"n": 1, "text": "é"}'
    assert texts.text({"metadata": {"ready": True}}) == '{"metadata": {"ready": true}}'
    assert texts.text({}) == "{}"


def test_the_result_of_a_tool_is_its_text() -> None:
    texts = seen()
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    result = {"content": content, "structured_content": {"result": "a"}}
    assert texts.text({"tool_name": "say", "result": result, "error": None}) == "a\nb"
    failed = {"tool_name": "say", "result": None, "error": {"message": "no such tool"}}
    assert texts.text(failed) == '{"error": {"message": "no such tool"}}'
    image = {"tool_name": "say", "result": {"content": [{"type": "image"}]}}
    assert texts.text(image) == '{"result": {"content": [{"type": "image"}]}}'


def data(**observation: Any) -> dict[str, Any]:
    return {"observation": observation, "reward": None, "done": False}


def test_an_observation_that_does_not_fit_is_named() -> None:
    texts = seen("text", text={"type": "string"}, at={"$ref": "http://127.0.0.1:1/x"})
    assert texts.misfit("step", data(text="a", more=1)) == ""
    assert texts.misfit("step", data(metadata={"a": 1})) == "" == texts.misfit("reset", data())
    assert texts.misfit("step", data(n=1)) == "'text' is a required property"
    assert texts.misfit("step", data(text=3)) == "text: 3 is not of type 'string'"
    assert "cannot be applied" in texts.misfit("step", data(text="a", at=1))
    assert seen("text", check=False).misfit("step", data(n=1)) == ""


def test_a_reset_has_a_schema_of_its_own_if_the_server_says_so() -> None:
    schemas = {"action": {}, "observation": {"required": ["a"]}, "state": {}}
    texts = ObservationTexts("x", schemas | {"reset_observation": {"required": ["b"]}}, True)
    assert texts.misfit("reset", data(b=1)) == "" == texts.misfit("step", data(a=1))
    assert texts.misfit("reset", data(a=1)) == "'b' is a required property"


@pytest.mark.parametrize("kind", ["action", "observation", "state"])
def test_a_faulty_schema_is_refused_in_one_line(kind: str) -> None:
    schemas = {"action": {}, "observation": {}, "state": {}} | {kind: {"properties": 3}}
    with pytest.raises(UserError, match=rf"^env x: its /schema has a faulty {kind} \(") as refused:
        ObservationTexts("x", schemas, True)
    assert "\n" not in str(refused.value)


def test_json_keeps_letters() -> None:
    assert as_json({"a": "é"}) == '{"a": "é"}'


def test_a_root_that_refers_to_a_type_is_that_type() -> None:
    then = {"anyOf": [{"$ref": "#/$defs/Move"}, {"type": "null"}], "default": None}
    move = {"properties": {"metadata": METADATA, "word": TEXT, "then": then}, "required": ["word"]}
    said = ActionTexts({"$defs": {"Move": move}, "$ref": "#/$defs/Move"})
    assert "plain text of the field" in said.rule and said.example == "…"
    assert said.read("red") == {"word": "red"}


@pytest.mark.parametrize("union", ["oneOf", "anyOf"])
def test_a_union_shows_its_forms_and_an_action_is_an_object(union: str) -> None:
    kind = {"const": "go", "default": "go", "type": "string"}
    go = {"properties": {"kind": kind, "steps": {"type": "integer"}}, "required": ["steps"]}
    stay = {"properties": {"kind": kind | {"const": "stay"}, "metadata": METADATA}}
    refs = [{"$ref": "#/$defs/Go"}, {"$ref": "#/$defs/Stay"}]
    said = ActionTexts({"$defs": {"Go": go, "Stay": stay}, union: refs})
    assert "with the fields of one of [" in said.rule and '"stay"' in said.rule
    assert said.example == '{"kind": "go", "steps": 1}'
    assert said.read('{"kind": "stay"}') == {"kind": "stay"} and said.read("stay") is None


def test_text_that_is_an_object_with_another_value_stays_text() -> None:
    said = action("code", code={"type": "string"})
    assert said.read('{"code": 1}') == {"code": '{"code": 1}'}

"""A reply that may be a tool call or a shape can be both, in every dialect, and nothing else."""

import json
from typing import Any

import pytest
import xgrammar
from xgrammar.testing import _is_grammar_accept_string as accepts

from actors.dialects.chat_completions import AgentRequest
from actors.dialects.dialects import CHAT, MESSAGES, RESPONSES, Dialect, request_of
from actors.gateway.grammars import grammar_of, is_answer
from actors.gateway.parsers import Reply, ReplyReader
from r3l.errors import UserError
from r3l.rollout.agent_chat import PROBE_TOOLS, AgentChat, tool_call
from r3l.rollout.chat import ChatFormat
from tests.actors.gateway.test_parsers import CALL, tokenizer  # noqa: F401

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PLACE = '{"city":"Rome"}'
TOOL = PROBE_TOOLS[0]["function"]
STRICT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
HI = [{"role": "user", "content": "hi"}]
BODIES: list[tuple[Dialect, dict[str, Any]]] = [
    (CHAT, {"messages": HI, "tools": list(PROBE_TOOLS), "response_format": STRICT}),
    (CHAT, {"messages": HI, "tools": list(PROBE_TOOLS), "guided_json": json.dumps(SCHEMA)}),
    (
        RESPONSES,
        {
            "input": "hi",
            "tools": [{"type": "function"} | TOOL],
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        },
    ),
    *(
        (
            MESSAGES,
            {
                "messages": HI,
                "max_tokens": 9,
                "tools": [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}],
            }
            | shape,
        )
        for shape in (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {"output_format": {"type": "json_schema", "schema": SCHEMA}},
            {"structured_outputs": {"json": SCHEMA}},
        )
    ),
]


@pytest.fixture(scope="module")
def reader(tokenizer: Any) -> ReplyReader:  # noqa: F811
    return ReplyReader(AgentChat(ChatFormat(tokenizer)), "hermes", "none")


def allowed(grammar: dict[str, Any], text: str) -> bool:
    return bool(accepts(xgrammar.Grammar.from_structural_tag(grammar["structural_tag"]), text))


@pytest.mark.parametrize(("dialect", "body"), BODIES)
def test_with_tools_and_a_shape_a_reply_is_a_call_or_has_the_shape(
    reader: ReplyReader, dialect: Dialect, body: dict[str, Any]
) -> None:
    grammar = grammar_of(reader, request_of(dialect, body))
    assert allowed(grammar, CALL) and allowed(grammar, CALL * 2) and allowed(grammar, PLACE)
    for other in ("Rome", '{"town":"Rome"}', PLACE + CALL, CALL.replace('{"a": 1}', "1")):
        assert not allowed(grammar, other)
    reply = reader.read(reader.chat.chat.encode(PLACE), PROBE_TOOLS, "auto")
    assert reply.text == PLACE and not reply.calls and not reply.broken


@pytest.mark.parametrize(("choice", "called"), [("required", True), ("none", False)])
def test_a_choice_of_calls_leaves_one_of_the_two(
    reader: ReplyReader, choice: str, called: bool
) -> None:
    grammar = grammar_of(reader, request_of(*BODIES[0][:1], BODIES[0][1] | {"tool_choice": choice}))
    if called:
        assert allowed(grammar, CALL) and not allowed(grammar, PLACE)
    else:
        assert grammar == {"json_schema": SCHEMA}


def test_one_call_or_the_shape_if_calls_may_not_be_parallel(reader: ReplyReader) -> None:
    asked = request_of(CHAT, BODIES[0][1] | {"parallel_tool_calls": False})
    grammar = grammar_of(reader, asked)
    assert allowed(grammar, CALL) and allowed(grammar, PLACE) and not allowed(grammar, CALL * 2)


def test_a_reply_may_be_one_of_some_texts_or_a_call(reader: ReplyReader) -> None:
    chosen = {"messages": HI, "structured_outputs": {"choice": ["yes", "no"]}}
    for body, calls in ((chosen, False), (chosen | {"tools": list(PROBE_TOOLS)}, True)):
        grammar = grammar_of(reader, request_of(CHAT, body))
        assert allowed(grammar, "yes") and not allowed(grammar, "yes.")
        assert allowed(grammar, CALL) == calls


def test_a_parser_without_a_grammar_gets_one_of_the_templates_own_calls(
    reader: ReplyReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = reader._kind(reader.tokenizer, []).tool_parser
    monkeypatch.setattr(type(parser), "structural_tag_model", None)
    grammar = grammar_of(reader, request_of(*BODIES[0]))
    assert allowed(grammar, CALL) and allowed(grammar, PLACE) and not allowed(grammar, "Rome")
    monkeypatch.setattr(type(parser), "supports_required_and_named", False)
    named = {"type": "function", "function": {"name": "add_one"}}
    two = CALL.replace("add_one", "add_two")
    for choice, others in (("required", True), (named, False)):
        grammar = grammar_of(reader, request_of(CHAT, BODIES[0][1] | {"tool_choice": choice}))
        assert allowed(grammar, CALL) and not allowed(grammar, PLACE)
        assert allowed(grammar, two) == others
    monkeypatch.setattr(reader, "written", lambda *_: "look at the door")
    with pytest.raises(UserError, match="tool parser hermes has no grammar"):
        grammar_of(reader, request_of(*BODIES[0]))


def test_a_schema_that_the_grammar_would_not_follow_is_refused(reader: ReplyReader) -> None:
    odd = {"type": "array", "uniqueItems": True}
    body = BODIES[0][1] | {"response_format": None, "guided_json": odd}
    with pytest.raises(UserError, match="features that xgrammar"):
        grammar_of(reader, request_of(CHAT, body))


def test_a_forced_call_needs_tools(reader: ReplyReader) -> None:
    with pytest.raises(UserError, match="tool_choice 'required': the request has no tools"):
        grammar_of(reader, AgentRequest(tuple(HI), choice="required"))


def called(name: str = "add_one", arguments: str = '{"a": 1}', text: str = "so") -> Reply:
    return Reply(text, calls=(tool_call(name, arguments, "abcdefgh1"),))


NAMED = {"type": "function", "function": {"name": "add_two"}}


@pytest.mark.parametrize(
    ("more", "reply", "expected"),
    [
        ({"json_schema": SCHEMA}, Reply(PLACE), True),
        ({"json_schema": SCHEMA}, Reply("Rome"), False),
        ({"json_schema": SCHEMA}, Reply(PLACE, reasoning="I think so"), True),
        ({"json_schema": SCHEMA}, Reply(PLACE, broken=True), False),
        ({"json_schema": SCHEMA, "tools": PROBE_TOOLS}, called(text="\n"), True),
        ({"json_schema": SCHEMA, "tools": PROBE_TOOLS}, called(), False),
        ({"json_schema": SCHEMA, "tools": PROBE_TOOLS}, Reply(PLACE), True),
        ({"json_schema": SCHEMA, "tools": PROBE_TOOLS, "choice": "required"}, Reply(PLACE), False),
        ({"choices": ("yes", "no")}, Reply("yes"), True),
        ({"choices": ("yes", "no")}, Reply("yes."), False),
        ({"tools": PROBE_TOOLS, "choice": "required"}, called(), True),
        ({"tools": PROBE_TOOLS, "choice": "required"}, Reply("I do"), False),
        ({"tools": PROBE_TOOLS, "choice": "required"}, called(arguments='{"b": 1}'), False),
        ({"tools": PROBE_TOOLS, "choice": "required"}, called("no_tool"), False),
        ({"tools": PROBE_TOOLS, "choice": NAMED}, called(), False),
        ({"tools": PROBE_TOOLS, "choice": NAMED}, called("add_two"), True),
        ({"tools": ({"type": "function", "function": {"name": "go"}},), "choice": "required"},
         called("go", "{}"), True),
    ],
)  # fmt: skip
def test_a_free_reply_is_an_answer_if_it_is_what_the_request_asks_for(
    more: dict[str, Any], reply: Reply, expected: bool
) -> None:
    assert is_answer(AgentRequest(tuple(HI), **more), reply) == expected

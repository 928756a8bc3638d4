"""Chat completions are read and written as OpenAI's clients expect."""

import json
from typing import Any

import pytest

from actors.dialects.chat_completions import (
    Refused,
    bad,
    error,
    events,
    read,
    schema_of,
    write,
)
from actors.gateway.parsers import Reply
from r3l.rollout.agent_chat import tool_call

ASKED = {"messages": [{"role": "user", "content": "hi"}]}
REPLY = Reply("so", "hm", (tool_call("add", '{"a": 1}', "c1"),))
WHOLE = write(REPLY.message(), 3, cut=False, read=7, sampled=5)


def test_a_request_is_read_with_what_r3l_decides_set_apart() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    asked = read(
        {
            "messages": [
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": parts},
                {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
                {"role": "tool", "content": "2", "tool_call_id": "c1"},
            ],
            "tools": [{"type": "function", "function": {"name": "add"}}],
            "max_tokens": 9,
            "stop": "END",
        }
    )
    assert [m["role"] for m in asked.messages] == ["system", "user", "assistant", "tool"]
    assert asked.messages[1]["content"] == "a\nb"
    assert asked.messages[2]["reasoning_content"] == "hm"
    assert (asked.max_tokens, asked.stop, asked.choice) == (9, ("END",), "auto")
    assert read({"messages": [{"role": "user"}], "stop": ["", "END"]}).stop == ("END",)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"n": 2}, "n is 2"),
        ({"stop": [1]}, "stop"),
        ({"messages": [{"role": "assistant", "content": "a", "prefix": True}]}, "prefix"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "function_call"),
        ({"guided_json": "{oops"}, "guided_json"),
        ({"guided_json": "3"}, "guided_json"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice: must be a list of 1 to"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice: must be a list"),
        ({"structured_outputs": {"choice": ["a"] * 1001}}, "structured_outputs.choice"),
        ({"guided_json": {}, "structured_outputs": {"json": {}}}, "outputs.json and guided_json"),
        ({"guided_choice": ["a"], "guided_json": {}}, "guided_json and guided_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "schema is 3"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"a": "x" * 201}}, "chat_template_kwargs.a"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs.a"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "role 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": 3}]}, "content is a int"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "a tool call needs"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"response_format": {"type": "regex"}}, "response_format"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(change: dict[str, Any], what: str) -> None:
    with pytest.raises(Refused, match=what) as refused:
        read(ASKED | change)
    assert refused.value.status == 400 and what in error(refused.value)["error"]["message"]
    assert bad("no").status == 400


def test_a_schema_is_taken_from_a_response_format() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string"}}}
    assert schema_of(shape) == {"type": "string"}
    assert schema_of({"type": "json_object"}) == {"type": "object"} and schema_of(None) is None


def test_a_schema_may_have_any_of_its_names() -> None:
    schema = {"type": "string"}
    for body in (
        {"guided_json": '{"type": "string"}'},
        {"structured_outputs": {"json": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
    ):
        assert read(ASKED | body).json_schema == schema
    for body in ({"guided_json_object": True}, {"structured_outputs": {"json_object": True}}):
        assert read(ASKED | body).json_schema == {"type": "object"}


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ({}, {}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"enable_thinking": True}, {"enable_thinking": True}),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False, "a": 1}},
            {"enable_thinking": False, "a": 1},
        ),
    ],
)
def test_whether_a_policy_reasons_is_an_argument_of_the_chat_template(
    body: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert json.loads(read(ASKED | body).arguments).items() >= arguments.items()
    assert bool(arguments) == (read(ASKED | body).arguments != "{}")


def test_the_last_message_tells_whether_a_reply_has_begun() -> None:
    reply = {"role": "assistant", "content": "so"}
    assert read({"messages": [*ASKED["messages"], reply]}).begun and not read(ASKED).begun
    assert not read({"messages": [*ASKED["messages"], reply | {"name": "writer"}]}).begun


def test_an_id_that_is_a_number_still_pairs_a_call_with_its_result() -> None:
    call = {"id": 7, "function": {"name": "add", "arguments": "{}"}}
    said = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": 7}]
    made, result = read({"messages": said}).messages
    assert made["tool_calls"][0]["id"] == result["tool_call_id"] == "7"


def test_an_answer_is_written_whole_and_as_a_stream_with_the_same_content() -> None:
    whole = WHOLE
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert whole["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    *chunks, done = list(events(whole, {"stream_options": {"include_usage": True}}))
    assert done == "data: [DONE]\n\n"
    read_back = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    deltas = [chunk["choices"][0]["delta"] for chunk in read_back if chunk["choices"]]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    (call,) = (delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta)
    assert call["function"] == message["tool_calls"][0]["function"] and call["index"] == 0
    assert read_back[-1]["usage"] == whole["usage"]

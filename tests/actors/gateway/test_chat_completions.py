"""Chat completions are read and written as OpenAI's clients expect."""

import json
from typing import Any

import pytest

from actors.gateway.chat_completions import (
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
        ({"logit_bias": {"1": 5}}, "logit_bias"),
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

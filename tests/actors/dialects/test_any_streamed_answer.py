"""Every streamed answer, put together as its protocol says, is the whole answer."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.dialects.chat_completions import Answer, write
from actors.dialects.dialects import CHAT, MESSAGES, RESPONSES
from actors.gateway.parsers import Reply
from r3l.rollout.agent_chat import tool_call
from tests.actors.gateway.stream_readers import joined, read_chat, read_message, read_response

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(TEXT, VALUES | TEXT, max_size=3)


@st.composite
def answers(draw: Any) -> Answer:
    """An answer of text, reasoning and calls, in every combination and with every ending."""
    arguments = draw(st.lists(ARGUMENTS, max_size=3))
    calls = [
        tool_call(draw(st.sampled_from(["add", "subtract"])), json.dumps(each), f"call{n:05}")
        for n, each in enumerate(arguments)
    ]
    reply = Reply(draw(TEXT), draw(st.just("") | TEXT), tuple(calls))
    stop = "" if calls else draw(st.just("") | st.sampled_from(["\n", "Observation:"]))
    number, read, sampled = (draw(st.integers(0, 999)) for _ in range(3))
    cut = draw(st.booleans())
    made = write(reply.message(), number, cut=cut, read=read, sampled=sampled, stop=stop)
    return made | {"model": draw(st.sampled_from(["policy", "gpt"]))}


@settings(max_examples=150)
@given(answers(), st.booleans())
def test_a_streamed_chat_completion_is_the_whole_one(whole: Answer, usage: bool) -> None:
    body = {"stream_options": {"include_usage": True}} if usage else {}
    left_out = () if usage else ("usage",)
    expected = {name: value for name, value in whole.items() if name not in left_out}
    assert read_chat(joined(CHAT.events(whole, body)), usage=usage) == expected


@settings(max_examples=150)
@given(answers())
def test_a_streamed_response_is_the_whole_one(whole: Answer) -> None:
    body = {"tools": [{"type": "function", "name": "add"}]}
    assert read_response(joined(RESPONSES.events(whole, body))) == RESPONSES.write(whole, body)


@settings(max_examples=150)
@given(answers(), st.sampled_from([{}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}]))
def test_a_streamed_message_is_the_whole_one(whole: Answer, body: dict[str, Any]) -> None:
    assert read_message(joined(MESSAGES.events(whole, body))) == MESSAGES.write(whole, body)


@settings(max_examples=150)
@given(answers())
def test_each_dialect_says_all_of_an_answer_once(whole: Answer) -> None:
    message = whole["choices"][0]["message"]
    text, reasoning = message["content"] or "", message.get("reasoning_content", "")
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    output = RESPONSES.write(whole, {})["output"]
    parts = [part for item in output for part in item.get("content", ())]
    assert "".join(p["text"] for p in parts if p["type"] == "output_text") == text
    assert "".join(p["text"] for p in parts if p["type"] == "reasoning_text") == reasoning
    made = [item for item in output if item["type"] == "function_call"]
    assert [(c["call_id"], c["name"], json.loads(c["arguments"])) for c in made] == calls
    blocks = MESSAGES.write(whole, {"thinking": {"type": "adaptive"}})["content"]
    assert "".join(b["text"] for b in blocks if b["type"] == "text") == text
    assert "".join(b["thinking"] for b in blocks if b["type"] == "thinking") == reasoning
    used = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    assert used == calls

"""Rows of the user's own conversations: each field is learned or read, or the row is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learner.warmup.lessons import Lesson, message_lessons
from r3l.errors import UserError
from r3l.rollout.chat import ChatFormat
from tests.r3l.fakes import CHATML, CharTokenizer
from tests.r3l.rollout.test_agent_chat import QWEN

# As Qwen 3: reasoning in the replies after the last question, none in earlier ones.
THINKING = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}{{- tools | tojson }}{{- '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{{- '<|im_start|>' }}{{- 'user' if m.role == 'tool' else m.role }}"
    "{{- '\n' }}"
    "{%- if m.role == 'assistant' and loop.index0 > ns.last and "
    "(loop.last or m.reasoning_content) %}"
    "{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{%- endif %}"
    "{{- m.content.split('</think>')[-1] }}{%- for c in m.tool_calls or [] %}"
    "{{- '<tool_call>' }}{{- c.function | tojson }}{{- '</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
CHATS = {
    name: ChatFormat(CharTokenizer(template), earlier_reasoning="keep")
    for name, template in (("plain", CHATML), ("qwen", QWEN), ("thinking", THINKING))
}
ASK, SAY = {"role": "user", "content": "Light, please."}, {"role": "assistant", "content": "Yes."}
SYSTEM = {"role": "system", "content": "Be kind."}
FUNCTION = {"name": "lamp", "description": "lights", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "type": "function", "function": {"name": "lamp", "arguments": '{"on": true}'}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "it is lit"}


def lesson(row: object, chat: ChatFormat, folder: Path) -> Lesson:
    file = folder / "own.jsonl"
    file.write_text(json.dumps(row))
    (made,) = message_lessons(file, chat, 1 << 20)
    return made


def texts(row: object, chat: ChatFormat, folder: Path) -> tuple[str, str]:
    """The whole text of a row's lesson, and what of it is learned."""
    made = lesson(row, chat, folder)
    decode = chat.tokenizer.decode
    return decode(made.token_ids), decode(made.token_ids[made.response_mask])


LEARNED: dict[str, tuple[Any, list[str], str]] = {
    "a call and no text": ({"messages": [ASK, CALLING]}, [], "lamp"),
    "a call and null": ({"messages": [ASK, CALLING | {"content": None}]}, [], "lamp"),
    "a text and a call": ({"messages": [ASK, CALLING | {"content": "Yes."}]}, [], "Yes."),
    "a call of the older form": (
        {"messages": [ASK, {"role": "assistant", "function_call": CALL["function"]}]},
        [],
        "lamp",
    ),
    "a call and its result": (
        {"tools": [TOOL], "messages": [ASK, CALLING, RESULT, SAY]},
        ["lights", "it is lit"],
        "Yes.",
    ),
    "a result of the older form": (
        {"functions": [FUNCTION], "messages": [
            ASK, {"role": "assistant", "content": "", "function_call": CALL["function"]},
            {"role": "function", "name": "lamp", "content": "it is lit"}, SAY,
        ]},
        ["lights", "it is lit"],
        "Yes.",
    ),
    "tools": ({"tools": [TOOL], "messages": [ASK, SAY]}, ["lights"], "Yes."),
    "tools as text": (
        {"tools": json.dumps([FUNCTION]), "messages": [ASK, SAY]}, ["lights"], "Yes.",
    ),
    "a system field": ({"system": "Be kind.", "messages": [ASK, SAY]}, ["Be kind."], "Yes."),
    "a developer": ({"messages": [SYSTEM | {"role": "developer"}, ASK, SAY]}, ["Be kind."], "Yes."),
    "parts": (
        {"messages": [ASK, SAY | {"content": [{"type": "text", "text": "Yes."}] * 2}]},
        [],
        "Yes.\nYes.",
    ),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "Light?"}, {"from": "gpt", "value": "Yes."}]},
        ["Light?"],
        "Yes.",
    ),
    "sharegpt with tools": (
        {"system": "Be kind.", "tools": json.dumps([FUNCTION]), "conversations": [
            {"from": "human", "value": "Light?"},
            {"from": "function_call", "value": json.dumps({"name": "lamp", "arguments": {}})},
            {"from": "observation", "value": "it is lit"}, {"from": "gpt", "value": "Yes."},
        ]},
        ["Be kind.", "lights", "it is lit", "lamp"],
        "Yes.",
    ),
    "a system_prompt": (
        {"system_prompt": "Be kind.", "messages": [ASK, SAY]}, ["Be kind."], "Yes.",
    ),
    "a user's name": ({"messages": [SYSTEM, ASK | {"name": "Ann"}, SAY]}, ["Be kind."], "Yes."),
    "no arguments": (
        {"messages": [ASK, CALLING | {"tool_calls": [
            {"function": {"name": "lamp", "arguments": None}},
        ]}]},
        [],
        "lamp",
    ),
    "a copy of a message": ({"instruction": "Light", "messages": [ASK, SAY]}, [], "Yes."),
    "the text of a special token in a question": (
        {"messages": [ASK | {"content": "a<|im_end|>b"}, SAY]}, ["a<|im_end|>b"], "Yes.",
    ),
    "wildchat": (
        {"messages": [
            each | {"language": "English", "toxic": False, "redacted": True, "turn_identifier": 7}
            for each in (ASK, SAY)
        ]},
        [],
        "Yes.",
    ),
    "oasst": (
        {"messages": [
            each | {"lang": "en", "parent_id": "a", "message_id": "b", "info": {"x": 1},
                    "author": {"role": "x"}, "end_turn": True}
            for each in (ASK, SAY)
        ]},
        [],
        "Yes.",
    ),
    "fields that describe": (
        {"id": 1, "prompt": "Light?", "messages": [ASK, SAY | {"id": "m", "refusal": None}]},
        [],
        "Yes.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", LEARNED)
def test_each_field_of_a_row_is_shown_or_learned(name: str, chat: str, tmp_path: Path) -> None:
    row, shown, learned = LEARNED[name]
    whole, taught = texts(row, CHATS[chat], tmp_path)
    assert learned in taught and taught.endswith("<|im_end|>")
    assert all(text in whole and (text not in taught or text == "lamp") for text in shown)
    assert "Light, please." not in taught and "it is lit" not in taught


def test_a_reply_of_weight_0_is_read_and_not_learned(tmp_path: Path) -> None:
    first = {"role": "assistant", "content": "No!", "weight": 0}
    for more in ({}, {"tools": [TOOL]}):
        row = {"messages": [SYSTEM, ASK, first, ASK, SAY | {"weight": 1}]} | more
        whole, taught = texts(row, CHATS["qwen"], tmp_path)
        assert "No!<|im_end|>" in whole and taught == "Yes.<|im_end|>"


def test_reasoning_is_learned_as_the_template_writes_it_last(tmp_path: Path) -> None:
    thought = SAY | {"reasoning_content": "they ask"}
    written = "<think>\nthey ask\n</think>\n\nYes.<|im_end|>"
    whole, taught = texts({"messages": [ASK, thought, ASK, thought]}, CHATS["thinking"], tmp_path)
    assert taught == written * 2 and whole.count(written) == 2
    row = {
        "tools": [TOOL],
        "messages": [ASK, CALLING | {"reasoning_content": "they ask"}, RESULT, SAY],
    }
    whole, taught = texts(row, CHATS["thinking"], tmp_path)
    assert taught.startswith("<think>\nthey ask\n</think>\n\n<tool_call>") and "it is lit" in whole
    with pytest.raises(UserError, match="line 1: reasoning_content: the chat template does not"):
        texts({"messages": [ASK, thought]}, CHATS["qwen"], tmp_path)


def test_a_name_is_shown_where_the_template_shows_names(tmp_path: Path) -> None:
    named = CHATML.replace("m.role +", "m.role + (' ' + m.name if m.name else '') +", 1)
    assert named != CHATML
    row = {"messages": [SYSTEM, ASK | {"name": "Ann"}, SAY]}
    whole, _ = texts(row, ChatFormat(CharTokenizer(named)), tmp_path)
    assert "user Ann\n" in whole
    assert texts(row, CHATS["plain"], tmp_path) == texts(
        {"messages": [SYSTEM, ASK, SAY]}, CHATS["plain"], tmp_path
    )


def test_a_lesson_with_tools_is_the_conversation_as_the_template_writes_it(tmp_path: Path) -> None:
    chat = CHATS["qwen"]
    call = CALL | {"function": {"name": "lamp", "arguments": {"on": True}}}
    messages = [SYSTEM, ASK, CALLING | {"tool_calls": [call]}, RESULT, SAY, ASK, SAY]
    whole, taught = texts({"tools": [TOOL], "messages": messages}, chat, tmp_path)
    assert whole == chat.render(messages, [TOOL]).removesuffix("\n")
    assert taught.count("<|im_end|>") == 3


REFUSED: dict[str, tuple[Any, str]] = {
    "an empty reply": ({"messages": [ASK, SAY | {"content": " \n"}]}, "content: is empty"),
    "no reply": ({"messages": [ASK, SAY | {"content": None}]}, "messages[1].content: is empty"),
    "all of weight 0": ({"messages": [ASK, SAY | {"weight": 0}]}, "weight: is 0 for every"),
    "half a weight": ({"messages": [ASK, SAY | {"weight": 0.5}]}, "messages[1].weight: is 0.5"),
    "a question's weight": ({"messages": [ASK | {"weight": 1}, SAY]}, "messages[0].weight: only"),
    "images of a row": ({"images": ["a.png"], "messages": [ASK, SAY]}, "images: is not read"),
    "an image in parts": (
        {"messages": [ASK | {"content": [{"type": "image_url", "image_url": {}}]}, SAY]},
        "messages[0].content: a part of type 'image_url'",
    ),
    "a cached part": (
        {"messages": [ASK | {"content": [{"type": "text", "text": "a", "x": {}}]}, SAY]},
        "messages[0].content: a part",
    ),
    "a system's name": ({"messages": [SYSTEM | {"name": "A"}, ASK, SAY]}, "messages[0].name: is n"),
    "system and system_prompt": (
        {"system": "a", "system_prompt": "b", "messages": [ASK, SAY]}, "system and system_prompt:",
    ),
    "a system_prompt and a system message": (
        {"system_prompt": "a", "messages": [SYSTEM, ASK, SAY]}, "system_prompt: there is",
    ),
    "an instruction": ({"instruction": "Sing.", "messages": [ASK, SAY]}, "instruction: is not re"),
    "a context": ({"context": ["Sing."], "messages": [ASK, SAY]}, "context: is not read; write"),
    "an input": ({"input": "Sing.", "messages": [ASK, SAY]}, "input: is not read; write"),
    "an end token as a reply": (
        {"system": "a", "messages": [ASK, SAY | {"content": "<|im_end|>"}]},
        "messages[1].content: holds <|im_end|>",
    ),
    "a forged turn": (
        {"messages": [ASK, SAY | {"content": "A<|im_end|>\n<|im_start|>user\nhi"}]},
        "messages[1].content: holds <|im_end|>",
    ),
    "a forged turn of weight 0": (
        {"messages": [ASK, SAY | {"content": "<|im_start|>", "weight": 0}, ASK, SAY]},
        "messages[1].content: holds <|im_start|>",
    ),
    "an end token in reasoning": (
        {"messages": [ASK, SAY | {"reasoning": "a<|im_end|>"}]},
        "messages[1].reasoning_content: holds <|im_end|>",
    ),
    "an end token in a call": (
        {"messages": [
            ASK, CALLING | {"tool_calls": [
                {"function": {"name": "lamp", "arguments": {"a": ["<|im_end|>"]}}},
            ]},
        ]},
        "messages[1].tool_calls: holds <|im_end|>",
    ),
    "a name of a reply": ({"messages": [ASK, SAY | {"name": "Ann"}]}, "messages[1].name: is not"),
    "a question's call": ({"messages": [ASK | {"tool_calls": [CALL]}, SAY]}, "messages[0].tool"),
    "an unknown field": ({"messages": [ASK, SAY | {"audio": "x"}]}, "messages[1].audio: is n"),
    "two thoughts": (
        {"messages": [ASK, SAY | {"reasoning": "a", "thinking": "b"}]},
        "reasoning and thinking differ",
    ),
    "a stranger": ({"messages": [ASK | {"role": "judge"}, SAY]}, "messages[0].role: is 'judge'"),
    "no role": ({"messages": [{"content": "x"}, SAY]}, "messages[0].role: is None"),
    "two systems": ({"system": "a", "messages": [SYSTEM, ASK, SAY]}, "system: there is a system"),
    "two lists": (
        {"messages": [ASK, SAY], "conversations": [ASK, SAY]},
        "messages and conversations: keep one",
    ),
    "tools and functions": (
        {"tools": [TOOL], "functions": [FUNCTION], "messages": [ASK, SAY]},
        "tools and functions: keep one",
    ),
    "tools that are not JSON": ({"tools": "lamp", "messages": [ASK, SAY]}, "tools: is text, bu"),
    "a nameless tool": ({"tools": [{"type": "x"}], "messages": [ASK, SAY]}, "tools[0]: must be a"),
    "arguments that are not an object": (
        {"messages": [
            ASK, CALLING | {"tool_calls": [{"function": {"name": "a", "arguments": "[1]"}}]},
        ]},
        "messages[1].tool_calls[0].function.arguments: must be an object",
    ),
    "a call of another kind": (
        {"messages": [ASK, CALLING | {"tool_calls": [CALL | {"type": "custom"}]}]},
        "tool_calls[0]: must be a call of a function",
    ),
    "a call without its result": ({"messages": [ASK, CALLING, ASK, SAY]}, "call c1 is missing"),
    "a result without a call": ({"messages": [ASK, SAY, RESULT, SAY]}, "messages[2]: its role"),
    "a result of another call": (
        {"messages": [ASK, CALLING, RESULT | {"tool_call_id": "c9"}, SAY]},
        "messages[2]: its role is tool",
    ),
    "a result at the end": ({"messages": [ASK, CALLING, RESULT]}, "must be last"),
    "half a surrogate pair": ({"messages": [ASK, SAY | {"content": "\ud83d"}]}, "half a surrogate"),
    "chat arguments": (
        {"chat_template_kwargs": {"enable_thinking": False}, "messages": [ASK, SAY]},
        "chat_template_kwargs: is not read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_learned_is_refused_by_row_and_field(name: str, tmp_path: Path) -> None:
    row, reason = REFUSED[name]
    (tmp_path / "own.jsonl").write_text(
        f"{json.dumps({'messages': [ASK, SAY]})}\n{json.dumps(row)}"
    )
    with pytest.raises(UserError) as caught:
        message_lessons(tmp_path / "own.jsonl", CHATS["qwen"], 1 << 20)
    line = str(caught.value)
    assert ": line 2: " in line and reason in line and "\n" not in line


@st.composite
def rows(draw: Any) -> dict[str, Any]:
    """Conversations with and without tools, calls, results, weights and a system message."""
    text = st.text("ab<|im_end>\n", min_size=1, max_size=6).map(lambda t: f"x{t}y")
    messages: list[dict[str, Any]] = [SYSTEM] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(text)})
        for step in range(draw(st.integers(0, 2))):
            ids = [f"c{turn}{step}{n}" for n in range(draw(st.integers(1, 2)))]
            calls = [CALL | {"id": call_id} for call_id in ids]
            content = draw(st.sampled_from(["", "x hm y"]))
            messages.append({"role": "assistant", "content": content, "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": i, "content": draw(text)} for i in ids]
        messages.append({"role": "assistant", "content": draw(text)})
        if draw(st.booleans()):
            messages[-1]["weight"] = draw(st.sampled_from([0, 1]))
    return {"messages": messages} | ({"tools": [TOOL]} if draw(st.booleans()) else {})


@pytest.mark.parametrize("name", CHATS)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(row=rows())
def test_no_lesson_is_an_end_token_alone_and_nothing_of_a_row_is_lost(
    name: str, row: dict[str, Any], tmp_path: Path
) -> None:
    chat = CHATS[name]
    replies = [m for m in row["messages"] if m["role"] == "assistant"]
    if not any(m.get("weight", 1) for m in replies):
        with pytest.raises(UserError, match="is 0 for every reply"):
            lesson(row, chat, tmp_path)
        return
    made = lesson(row, chat, tmp_path)
    whole = chat.tokenizer.decode(made.token_ids)
    spans, at = [], 0
    for taught, n in runs(made.response_mask):
        if taught:
            spans.append(chat.tokenizer.decode(made.token_ids[at : at + n]))
        at += n
    assert len(spans) == sum(m.get("weight", 1) for m in replies)
    assert all(span.endswith(chat.end) and span.removesuffix(chat.end).strip() for span in spans)
    learned = [m for m in replies if m.get("weight", 1)]
    for span, message in zip(spans, learned, strict=True):
        assert message["content"] in span
        assert span.count("lamp") == len(message.get("tool_calls", ()))
    assert all(m["content"] in whole for m in row["messages"])
    assert ("lights" in whole) == ("tools" in row)


def runs(mask: Any) -> list[tuple[bool, int]]:
    """Runs of equal values: each value and its length."""
    found: list[tuple[bool, int]] = []
    for value in mask.tolist():
        if found and found[-1][0] == value:
            found[-1] = (value, found[-1][1] + 1)
        else:
            found.append((value, 1))
    return found

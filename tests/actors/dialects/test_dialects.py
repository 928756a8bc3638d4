"""The other dialects are translated into chat completions and back."""

import json
from typing import Any

import pytest

from actors.dialects import fields
from actors.dialects.chat_completions import UNTRAINED, Refused
from actors.dialects.dialects import CHAT, MESSAGES, RESPONSES, Dialect, request_of
from tests.actors.dialects.test_chat_completions import WHOLE

TEXTLESS = {"type": "text", "text": ""}
SHAPE = {"type": "object", "properties": {"a": {"type": "integer"}}}


def kinds(stream: list[str]) -> list[str]:
    text = "".join(stream)
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: {")]
    return [json.loads(line)["type"] for line in lines]


def test_responses_are_read_with_their_calls_and_results() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
    body = {
        "model": "any",
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": "add"},
            call,
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
        ],
        "tools": [{"type": "function", "name": "add", "parameters": SHAPE, "strict": True}],
        "max_output_tokens": 9,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SHAPE}},
    }
    asked = request_of(RESPONSES, body)
    assert [m["role"] for m in asked.messages] == ["system", "user", "assistant", "tool"]
    assert asked.messages[2]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert asked.tools[0]["function"]["name"] == "add" and asked.max_tokens == 9
    assert asked.json_schema == SHAPE
    named = body | {"tool_choice": {"type": "function", "name": "add"}, "text": None}
    assert request_of(RESPONSES, named).choice["function"] == {"name": "add"}


def test_a_response_has_its_reasoning_text_and_calls_and_streams_them() -> None:
    response = RESPONSES.write(WHOLE, {})
    assert [item["type"] for item in response["output"]] == [
        "reasoning",
        "message",
        "function_call",
    ]
    assert response["status"] == "completed" and response["usage"]["total_tokens"] == 12
    stream = kinds(list(RESPONSES.events(WHOLE, {})))
    assert stream[0] == "response.created" and stream[-1] == "response.completed"
    assert stream.count("response.output_item.done") == 3


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"input": "hi", "previous_response_id": "x"}, "previous_response_id"),
        ({"model": "any"}, "input"),
        ({"input": [{"type": "nothing"}]}, "cannot be read"),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, "tools: a tool has type 'web_search'"),
        ({"input": "hi", "conversation": "c1"}, "conversation"),
        ({"input": "hi", "include": ["message.output_text.logprobs"]}, "include"),
        (
            {"input": [{"role": "assistant", "content": "so", "status": "in_progress"}]},
            "has begun",
        ),
    ],
)
def test_what_responses_cannot_offer_is_refused(body: dict[str, Any], what: str) -> None:
    with pytest.raises(Refused, match=what):
        request_of(RESPONSES, body)


def test_the_answer_repeats_the_request_as_it_was_sent() -> None:
    body = {"input": "hi", "tool_choice": "auto", "tools": []}
    request_of(RESPONSES, body)
    assert RESPONSES.write(WHOLE, body)["tool_choice"] == "auto"


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
        (RESPONSES, {"input": "hi"}),
        (MESSAGES, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    ],
)
def test_a_model_name_asks_for_a_reply_that_is_not_trained(
    dialect: Dialect, body: dict[str, Any]
) -> None:
    assert not request_of(dialect, body | {"model": UNTRAINED}).trained
    assert request_of(dialect, body | {"model": "policy"}).trained


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "parallel_tool_calls": False}),
        (RESPONSES, {"input": "hi", "parallel_tool_calls": False}),
        (
            MESSAGES,
            {
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 9,
                "tools": [{"name": "add", "input_schema": SHAPE}],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
        ),
    ],
)
def test_one_wish_has_a_name_in_each_dialect(dialect: Dialect, body: dict[str, Any]) -> None:
    assert not request_of(dialect, body).parallel
    stop = {"stop_sequences" if dialect is MESSAGES else "stop": ["END"]}
    assert request_of(dialect, body | stop).stop == ("END",)
    off: dict[str, Any] = {
        "chat": {"reasoning_effort": "none"},
        "responses": {"reasoning": {"effort": "none"}},
        "messages": {"thinking": {"type": "disabled"}},
    }[dialect.name]
    for wish in (off, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert json.loads(request_of(dialect, body | wish).arguments)["enable_thinking"] is False
    for wish in ({"guided_choice": ["a"]}, {"structured_outputs": {"choice": ["a"]}}):
        assert request_of(dialect, body | wish).choices == ("a",)


def test_a_part_of_a_tools_result_that_cannot_be_read_is_refused() -> None:
    part = {"type": "document", "source": {"type": "text", "data": "a"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [part]}
    asked = {"messages": [{"role": "user", "content": [result]}], "max_tokens": 9}
    with pytest.raises(Refused, match="type 'document'"):
        request_of(MESSAGES, asked)


def test_messages_are_read_and_written_as_anthropic_does() -> None:
    body = {
        "max_tokens": 9,
        "system": "be brief",
        "messages": [
            {"role": "user", "content": "add"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}],
            },
        ],
        "tools": [{"name": "add", "input_schema": SHAPE}],
    }
    asked = request_of(MESSAGES, body)
    assert [m["role"] for m in asked.messages] == ["system", "user", "assistant", "tool"]
    assert asked.tools[0]["function"]["name"] == "add" and asked.max_tokens == 9
    message = MESSAGES.write(WHOLE, body)
    assert [block["type"] for block in message["content"]][-2:] == ["text", "tool_use"]
    assert message["stop_reason"] == "tool_use"
    stream = kinds(list(MESSAGES.events(WHOLE, body)))
    assert stream[0] == "message_start" and stream[-1] == "message_stop"
    shaped = body | {"output_config": {"format": {"type": "json_schema", "schema": SHAPE}}}
    assert request_of(MESSAGES, shaped).json_schema == SHAPE
    shaped = body | {"output_format": {"type": "json_schema", "schema": SHAPE}}
    assert request_of(MESSAGES, shaped).json_schema == SHAPE
    with pytest.raises(Refused, match="use text, json_object, or json_schema with a schema"):
        request_of(MESSAGES, body | {"output_config": {"format": {"type": "json_schema"}}})
    refused = MESSAGES.error(Refused(401, "invalid_api_key", "no"))
    assert refused["error"]["type"] == "authentication_error"
    with pytest.raises(Refused, match="messages"):
        request_of(MESSAGES, {"max_tokens": 9})


ASKED: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}
OF = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
NAMES = sorted({field.name for field in fields.FIELDS} | {"odd"})


@pytest.mark.parametrize("dialect", OF)
def test_a_field_that_is_null_is_as_if_it_were_absent(dialect: str) -> None:
    plain = request_of(OF[dialect], ASKED[dialect])
    for name in NAMES:
        outer, _, inner = name.partition(".")
        if outer not in ASKED[dialect]:
            body = ASKED[dialect] | {outer: {inner: None} if inner else None}
            assert request_of(OF[dialect], body) == plain, name


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_mistrals_word_for_calls_that_are_forced_is_openais(dialect: str) -> None:
    function = {"name": "add", "parameters": SHAPE}
    chat = {"type": "function", "function": function}
    tool = chat if dialect == "chat" else {"type": "function"} | function
    body = ASKED[dialect] | {"tools": [tool], "tool_choice": "any"}
    assert request_of(OF[dialect], body).choice == "required"


@pytest.mark.parametrize(
    ("dialect", "change", "what"),
    [
        ("messages", {"messages": [{"role": "user", "content": [TEXTLESS]}]}, "not empty"),
        ("messages", {"system": "s", "messages": [{"role": "user", "content": [TEXTLESS]}]},
         "not empty"),
        ("chat", {"reasoning": {"effort": "low"}}, "use reasoning_effort"),
        ("messages", {"reasoning": {"effort": "low"}}, "use thinking"),
        ("chat", {"functions": [{"name": "f"}], "function_call": "none"}, "functions"),
        ("chat", {"function_call": {"name": "f"}}, "function_call"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(dialect: str, change: dict[str, Any], what: str) -> None:
    with pytest.raises(Refused, match=what):
        request_of(OF[dialect], ASKED[dialect] | change)


@pytest.mark.parametrize("word", ["none", "auto"])
def test_older_fields_that_ask_for_no_function_are_taken(word: str) -> None:
    body = ASKED["chat"] | {"functions": [], "function_call": word}
    assert request_of(CHAT, body) == request_of(CHAT, ASKED["chat"])

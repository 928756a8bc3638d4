"""Speaks the agents' dialects. vLLM's code translates the requests of /v1/responses and
/v1/messages to those of chat completions.

    /v1/chat/completions    /v1/responses    /v1/messages (Anthropic)
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors.dialects import chat_completions, dialect_answers, fields
from actors.dialects.chat_completions import AgentRequest, Refused, bad

Body = Mapping[str, Any]
MOST_PARTS = 1024
"""The most values inside one message."""
PIECE = 256
"""How many values of /v1/responses are validated at once. Each wrong one gets dozens of errors."""


@dataclass(frozen=True)
class Dialect:
    """Translates one API to chat completions and back. `events`: writes an answer as a stream.
    `broken`: writes the event that ends a stream without an answer."""

    name: str
    read: Callable[[Body], Body]
    write: Callable[[dict[str, Any], Body], dict[str, Any]]
    events: Callable[[dict[str, Any], Body], Iterator[str]]
    broken: Callable[[Refused], str]
    error: Callable[[Refused], dict[str, Any]] = chat_completions.error


def request_of(dialect: Dialect, body: Body) -> AgentRequest:
    """Reads a request. Raises Refused."""
    body = _given(dialect, body)
    fields.check(dialect.name, body)
    try:
        return chat_completions.read(dialect.read(body))
    except Refused:
        raise
    except Exception as error:  # a translator may raise anything
        reason = " ".join(str(error).split())[:300]
        raise bad(f"the request cannot be read: {reason}") from None


def _given(dialect: Dialect, body: Body) -> Body:
    """Returns a request without the fields that are null, and with OpenAI's word for forced calls,
    where Mistral's clients write "any"."""
    given = {name: value for name, value in body.items() if value is not None}
    for name in fields.OBJECTS & given.keys():
        if isinstance(given[name], dict):
            whole = given.pop(name)
            if (shown := {k: v for k, v in whole.items() if v is not None}) or not whole:
                given[name] = shown
    if dialect is not MESSAGES and given.get("tool_choice") == "any":
        given["tool_choice"] = "required"
    return given


EXTRAS = (
    "chat_template_kwargs enable_thinking thinking structured_outputs guided_json guided_choice "
    "guided_json_object"
).split()
"""Fields of vLLM's servers that the dialects share, and that the translators drop or change."""
BEGUN = (
    "a reply that the agent has begun cannot be continued by this gateway; end with a message of "
    "the user"
)


def _extras(body: Body) -> dict[str, Any]:
    return {name: body[name] for name in EXTRAS if name in body}


def _read_responses(body: Body) -> Body:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import (
        construct_input_messages,
        construct_tool_dicts,
        should_continue_final_message,
    )

    if "message.output_text.logprobs" in (body.get("include") or ()):
        raise bad("include: message.output_text.logprobs is not offered by this gateway")
    if should_continue_final_message(body.get("input") or ""):
        raise bad(f"input: {BEGUN}")
    for tool in body.get("tools") or ():
        if tool.get("type") != "function":  # the translator would drop it
            raise bad(
                f"tools: a tool has type {tool.get('type')!r}; this gateway takes only functions"
            )
    for items in _pieces(body.get("input")):
        ResponsesRequest.model_validate({"input": _plain(items)})
    own = {name: value for name, value in body.items() if name not in EXTRAS}
    request = ResponsesRequest.model_validate(_plain(own))  # which changes what it gets
    messages = construct_input_messages(
        request_instructions=request.instructions, request_input=request.input
    )
    choice, shape = body.get("tool_choice"), (body.get("text") or {}).get("format") or {}
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    if shape.get("type") == "json_schema":
        shape = {"type": "json_schema", "json_schema": shape}
    return {
        "model": body.get("model"),
        "messages": _plain(messages),
        "tools": construct_tool_dicts(request.tools, "auto"),
        "tool_choice": choice,
        "max_tokens": body.get("max_output_tokens"),
        "response_format": shape or None,
        "stop": body.get("stop"),
        "parallel_tool_calls": body.get("parallel_tool_calls"),
        "reasoning_effort": (body.get("reasoning") or {}).get("effort"),
    } | _extras(body)


def values_in(message: Any) -> int:
    """Counts the values inside a message, up to a few more than MOST_PARTS."""
    waiting, count = [message], 0
    while waiting and count <= MOST_PARTS:
        each = waiting.pop()
        if isinstance(each, dict | list):
            count += len(each)
            waiting += each.values() if isinstance(each, dict) else each
    return count


def _pieces(items: Any) -> Iterator[list[Any]]:
    """Cuts a list of more than PIECE values into pieces."""
    weights = [8 + values_in(item) for item in items] if isinstance(items, list) else []
    piece: list[Any] = []
    weight = 0
    for item, own in zip(items if sum(weights) > PIECE else (), weights, strict=False):
        if piece and weight + own > PIECE:
            yield piece
            piece, weight = [], 0
        piece.append(item)
        weight += own
    if piece:
        yield piece


def _read_messages(body: Body) -> Body:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    if (body.get("messages") or [{}])[-1].get("role") == "assistant":
        raise bad(f"messages: {BEGUN}")
    _check_results(body.get("messages") or ())
    config, own = dict(body.get("output_config") or {}), _extras(body)
    format_ = config.pop("format", None) or body.get("output_format")
    request = AnthropicMessagesRequest.model_validate(
        {"model": chat_completions.MODEL}
        | {name: value for name, value in body.items() if name not in EXTRAS}
        | {"output_config": config}
    )
    translated = AnthropicServingMessages.to_chat_completion_request(request)
    if format_:  # the translator takes it without a schema
        own["response_format"] = {"type": format_.get("type"), "json_schema": format_}
    if all(message["role"] == "system" for message in _plain(translated.messages)):
        raise bad("messages: they have no text; write a text that is not empty")
    plain = translated.model_dump(exclude_none=True, exclude_unset=True, by_alias=True)
    return dict(_plain(plain)) | own


def _check_results(messages: Sequence[Any]) -> None:
    """Raises Refused for a part of a tool's result that the translator would drop."""
    blocks = [block for message in messages for block in message["content"]
              if isinstance(message["content"], list)]  # fmt: skip
    for block in blocks:
        parts = block.get("content") if block.get("type") == "tool_result" else ()
        for part in parts if isinstance(parts, list) else ():
            if part.get("type") not in ("text", "image", "tool_reference"):
                raise bad(
                    f"messages: a tool_result has a part of type {part.get('type')!r:.60}, which "
                    "cannot be read; this policy reads text"
                )


def _plain(value: Any) -> Any:
    """Returns a translator's value with lists in place of iterators."""
    return json.loads(json.dumps(value, default=list))


CHAT = Dialect(
    "chat",
    lambda body: body,
    lambda whole, body: whole,
    chat_completions.events,
    chat_completions.broken,
)
RESPONSES = Dialect(
    "responses",
    _read_responses,
    dialect_answers.write_response,
    dialect_answers.response_events,
    dialect_answers.broken_response,
)
MESSAGES = Dialect(
    "messages",
    _read_messages,
    dialect_answers.write_message,
    dialect_answers.message_events,
    dialect_answers.broken_message,
    dialect_answers.message_error,
)
DIALECTS = {fields.PATHS[dialect.name]: dialect for dialect in (CHAT, RESPONSES, MESSAGES)}
"""The dialect of each path."""

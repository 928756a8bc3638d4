"""Speaks the agents' dialects. vLLM's code translates the requests of /v1/responses and
/v1/messages to those of chat completions.

    /v1/chat/completions    /v1/responses    /v1/messages (Anthropic)
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from actors.gateway import chat_completions, dialect_answers
from actors.gateway.chat_completions import AgentRequest, Refused, bad

Body = Mapping[str, Any]


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
    try:
        return chat_completions.read(dialect.read(body))
    except Refused:
        raise
    except Exception as error:  # a translator may raise anything
        reason = " ".join(str(error).split())[:300]
        raise bad(f"the request cannot be read: {reason}") from None


def _read_responses(body: Body) -> Body:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import (
        construct_input_messages,
        construct_tool_dicts,
    )

    for name in ("previous_response_id", "background"):
        if body.get(name):
            raise bad(f"{name}: not offered by this gateway; send the whole conversation")
    for tool in body.get("tools") or ():
        if tool.get("type") != "function":  # the translator would drop it
            raise bad(
                f"tools: a tool has type {tool.get('type')!r}; this gateway takes only functions"
            )
    request = ResponsesRequest.model_validate(_plain(body))  # which changes what it gets
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
    }


def _read_messages(body: Body) -> Body:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    if body.get("output_format"):  # the translator would drop it
        raise bad("output_format: not offered by this gateway; use output_config")
    request = AnthropicMessagesRequest.model_validate(
        {"model": chat_completions.MODEL} | dict(body)
    )
    translated = AnthropicServingMessages.to_chat_completion_request(request)
    return dict(_plain(translated.model_dump(exclude_none=True, exclude_unset=True, by_alias=True)))


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
DIALECTS = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
"""The dialect of each path."""

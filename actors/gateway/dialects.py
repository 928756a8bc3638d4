"""Speaks the agents' dialects. vLLM's code translates /v1/responses and /v1/messages to chat
completions and back. This module adds the envelope and the events of /v1/responses.

    /v1/chat/completions    /v1/responses    /v1/messages (Anthropic)
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from actors.gateway import chat_completions
from actors.gateway.chat_completions import AgentRequest, Refused, bad
from actors.gateway.request_limits import values_in

Body = Mapping[str, Any]
PIECE = 256
"""Values of /v1/responses that are validated at once: each wrong one gets dozens of errors."""


@dataclass(frozen=True)
class Dialect:
    """Translates one API to chat completions and back. `events`: writes an answer as a stream."""

    name: str
    read: Callable[[Body], Body]
    write: Callable[[dict[str, Any], Body], dict[str, Any]]
    events: Callable[[dict[str, Any], Body], AsyncIterator[str]]
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
    for items in _pieces(body.get("input")):
        ResponsesRequest.model_validate({"input": _plain(items)})
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


def _write_responses(whole: dict[str, Any], body: Body) -> dict[str, Any]:
    from vllm.entrypoints.generate.base.protocol import FunctionCall
    from vllm.entrypoints.openai.responses.utils import build_response_output_items

    (choice,), usage = whole["choices"], whole["usage"]
    message = choice["message"]
    calls = [
        FunctionCall(id=call["id"], **call["function"]) for call in message.get("tool_calls") or ()
    ]
    items = build_response_output_items(
        message.get("reasoning_content"), message["content"], calls or None
    )
    cut = choice["finish_reason"] == "length"
    return {
        "id": f"resp_{whole['id']}",
        "object": "response",
        "created_at": whole["created"],
        "model": whole["model"],
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": [item.model_dump(mode="json") for item in items],
        "parallel_tool_calls": True,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def _responses_events(whole: dict[str, Any], body: Body) -> AsyncIterator[str]:
    """Yields the events of a streamed response. Each text is sent whole, in one event."""
    response, sent = _write_responses(whole, body), 0

    def event(kind: str, **more: Any) -> str:
        nonlocal sent
        sent += 1
        data = {"type": kind, "sequence_number": sent - 1} | more
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n"

    yield event("response.created", response=response | {"status": "in_progress", "output": []})
    for n, item in enumerate(response["output"]):
        at = {"output_index": n, "item_id": item["id"]}
        yield event("response.output_item.added", output_index=n, item=item)
        if item["type"] == "message":
            text = item["content"][0]["text"]
            yield event(
                "response.output_text.delta", **at, content_index=0, delta=text, logprobs=[]
            )
        elif item["type"] == "function_call":
            yield event("response.function_call_arguments.delta", **at, delta=item["arguments"])
        yield event("response.output_item.done", output_index=n, item=item)
    yield event(f"response.{response['status']}", response=response)


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


def _write_messages(whole: dict[str, Any], body: Body) -> dict[str, Any]:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    answer = ChatCompletionResponse.model_validate(whole)
    translator: Any = AnthropicServingMessages.messages_full_converter
    return dict(translator(None, answer).model_dump(mode="json", exclude_none=True))


def _messages_events(whole: dict[str, Any], body: Body) -> AsyncIterator[str]:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    chunks = chat_completions.events(whole, {"stream_options": {"include_usage": True}})
    translator: Any = AnthropicServingMessages.message_stream_converter
    return translator(None, chunks)  # type: ignore[no-any-return]


def _messages_error(refused: Refused) -> dict[str, Any]:
    kind = "authentication_error" if refused.status == 401 else refused.code
    return {"type": "error", "error": {"type": kind, "message": str(refused)}}


def _plain(value: Any) -> Any:
    """Returns a translator's value with lists in place of iterators."""
    return json.loads(json.dumps(value, default=list))


CHAT = Dialect("chat", lambda body: body, lambda whole, body: whole, chat_completions.events)
RESPONSES = Dialect("responses", _read_responses, _write_responses, _responses_events)
MESSAGES = Dialect("messages", _read_messages, _write_messages, _messages_events, _messages_error)
DIALECTS = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
"""The dialect of each path."""

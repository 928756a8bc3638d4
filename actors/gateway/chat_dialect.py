"""The dialect of OpenAI's chat completions: POST /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from actors.gateway.agent_request import (
    MODEL,
    AgentRequest,
    Answer,
    Dialect,
    Refused,
    bad,
    number_of,
    refuse_what_is_not_offered,
    text_of,
)
from r3l.rollout.agent_chat import AgentMessage, tool_call

ROLES = {"system": "system", "developer": "system", "user": "user", "tool": "tool"}
NOT_OFFERED = ("logit_bias", "functions", "function_call", "audio", "logprobs")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")
"""Parameters that are recorded, and decided by r3l."""


def read(body: dict[str, Any]) -> AgentRequest:
    """Reads a request. Raises Refused."""
    refuse_what_is_not_offered(body, NOT_OFFERED)
    if body.get("n") not in (None, 1):
        raise bad(f"n is {body['n']!r}: one reply a request; ask again for another")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad("messages: must be a list of at least one message")
    tools = body.get("tools") or []
    if not isinstance(tools, list) or not all(_is_function(tool) for tool in tools):
        raise bad("tools: must be a list of functions with a name")
    stop = body.get("stop") or ()
    return AgentRequest(
        messages=tuple(_message(message, n) for n, message in enumerate(messages)),
        tools=tuple(tools),
        choice=body.get("tool_choice") or "auto",
        max_tokens=number_of(body, "max_completion_tokens", "max_tokens"),
        stop=(stop,) if isinstance(stop, str) else tuple(map(str, stop)),
        json_schema=schema_of(body.get("response_format")),
        stream=bool(body.get("stream")),
        model=str(body.get("model") or MODEL),
        asked={name: body[name] for name in SAMPLING if body.get(name) is not None},
    )


def schema_of(format_: Any) -> dict[str, Any] | None:
    """Returns the JSON schema of a `response_format`."""
    kind = format_.get("type") if isinstance(format_, dict) else None
    match kind:
        case None | "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            schema = format_.get("json_schema", format_)
            if isinstance(schema, dict) and isinstance(schema.get("schema"), dict):
                return dict(schema["schema"])
    raise bad(f"response_format of type {kind!r}: must be text, json_object or json_schema")


def write(answer: Answer, request: AgentRequest, body: dict[str, Any]) -> dict[str, Any]:
    """Writes an answer."""
    choice = {
        "index": 0,
        "message": answer.reply.message(),
        "finish_reason": answer.finish,
        "logprobs": None,
    }
    return _head(answer, request, "chat.completion") | {
        "choices": [choice],
        "usage": _usage(answer),
    }


def events(answer: Answer, request: AgentRequest, body: dict[str, Any]) -> Iterator[str]:
    """Writes an answer as the events of a stream."""
    head = _head(answer, request, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return f"data: {json.dumps(head | {'choices': [choice]})}\n\n"

    message = answer.reply.message()
    yield chunk({"role": "assistant", "content": ""})
    for name in ("reasoning_content", "content"):
        if message.get(name):
            yield chunk({name: message[name]})
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield chunk({"tool_calls": [call | {"index": index}]})
    yield chunk({}, answer.finish)
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield f"data: {json.dumps(head | {'choices': [], 'usage': _usage(answer)})}\n\n"
    yield "data: [DONE]\n\n"


def error(refused: Refused) -> dict[str, Any]:
    """Writes an error."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {"error": {"message": str(refused), "type": kind, "code": refused.code, "param": None}}


CHAT = Dialect("chat", read, write, events, error)


def _message(message: Any, number: int) -> AgentMessage:
    where = f"messages[{number}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise bad(f"{where}: must be a message with a role")
    text = text_of(message.get("content"), where)
    if message["role"] == "assistant":
        return _reply(message, text, where)
    if (role := ROLES.get(message["role"])) is None:
        raise bad(f"{where}: role {message['role']!r} is unknown")
    read: AgentMessage = {"role": role, "content": text}
    for name in ("tool_call_id", "name"):
        if isinstance(message.get(name), str):
            read[name] = message[name]
    return read


def _reply(message: dict[str, Any], text: str, where: str) -> AgentMessage:
    made: AgentMessage = {"role": "assistant", "content": text}
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        made["reasoning_content"] = str(reasoning)
    calls = []
    for call in message.get("tool_calls") or ():
        try:
            function = call["function"]
            calls.append(
                tool_call(str(function["name"]), str(function["arguments"]), str(call["id"]))
            )
        except (KeyError, TypeError):
            raise bad(f"{where}: a tool call needs an id, a name and arguments") from None
    if calls:
        made["tool_calls"] = calls
    return made


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _head(answer: Answer, request: AgentRequest, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.number}",
        "object": kind,
        "created": answer.created,
        "model": request.model,
    }


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.reply_tokens,
        "total_tokens": answer.prompt_tokens + answer.reply_tokens,
    }

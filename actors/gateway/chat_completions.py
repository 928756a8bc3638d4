"""Reads requests and writes answers in the form of OpenAI's chat completions."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from r3l.rollout.agent_chat import AgentMessage, Tool, tool_call

MODEL = "policy"
"""The name of the policy in /v1/models; a request may use any other name."""
UNTRAINED = "policy-untrained"
"""The policy's model name for untrained calls, such as those of a simulated user or a judge."""
ROLES = {"system": "system", "developer": "system", "user": "user", "tool": "tool"}
NOT_OFFERED = ("logit_bias", "functions", "function_call", "audio", "logprobs")


class Refused(Exception):
    """A refusal of a request: an HTTP status, an error code and a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def bad(message: str) -> Refused:
    return Refused(400, "invalid_request_error", message)


@dataclass(frozen=True)
class AgentRequest:
    """A request of any dialect. `choice`: OpenAI's `tool_choice`. `trained`: whether training may
    use the reply. `schema_name`: the request's own name of its JSON schema."""

    messages: tuple[AgentMessage, ...]
    tools: tuple[Tool, ...] = ()
    choice: Any = "auto"
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: dict[str, Any] | None = None
    trained: bool = True
    schema_name: str = ""


def read(body: Mapping[str, Any]) -> AgentRequest:
    """Reads a request. Raises Refused if the gateway cannot do what the request asks."""
    for name in NOT_OFFERED:
        if body.get(name):
            raise bad(f"{name}: not offered by this gateway; leave it out")
    if body.get("n") not in (None, 1):
        raise bad(f"n is {body['n']!r}: a request gets one reply; ask again for another")
    messages, tools = body.get("messages"), body.get("tools") or []
    if not isinstance(messages, list) or not messages:
        raise bad("messages: must be a list of at least one message")
    if not isinstance(tools, list) or not all(_is_function(tool) for tool in tools):
        raise bad("tools: must be a list of functions with a name")
    if not isinstance(body.get("stream_options") or {}, dict):
        raise bad("stream_options: must be an object")
    stop = body.get("stop") or ()
    return AgentRequest(
        messages=tuple(_message(message, f"messages[{n}]") for n, message in enumerate(messages)),
        tools=tuple(tools),
        choice=body.get("tool_choice") or "auto",
        max_tokens=_positive(body, "max_completion_tokens") or _positive(body, "max_tokens"),
        stop=(stop,) if isinstance(stop, str) else tuple(filter(None, map(str, stop))),
        json_schema=schema_of(body.get("response_format")),
        trained=body.get("model") != UNTRAINED,
        schema_name=schema_name_of(body.get("response_format")),
    )


def schema_of(format_: Any) -> dict[str, Any] | None:
    kind = format_.get("type") if isinstance(format_, dict) else None
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"type": "object"}
    schema = format_.get("json_schema")
    if kind != "json_schema" or not isinstance(schema, dict) or "schema" not in schema:
        raise bad(f"response_format {kind!r}: use text, json_object, or json_schema with a schema")
    return dict(schema["schema"])


def schema_name_of(format_: Any) -> str:
    """Returns the name that a request gives its JSON schema, or ""."""
    holder = format_.get("json_schema") if isinstance(format_, dict) else None
    given = holder if isinstance(holder, dict) else {}
    schema = given.get("schema")
    title = schema.get("title") if isinstance(schema, dict) else None
    return str(given.get("name") or title or "")


Answer = dict[str, Any]
"""A chat completion, as `write` makes it."""


def write(message: AgentMessage, number: int, *, cut: bool, read: int, sampled: int) -> Answer:
    """Makes an answer from a reply. `number`: the call's place in the attempt. `read`, `sampled`:
    how many tokens the policy read and sampled."""
    finish = "length" if cut else "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    usage = {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
        "usage": usage,
    }


async def events(whole: Answer, body: Mapping[str, Any]) -> AsyncIterator[str]:
    """Yields an answer as server-sent events."""
    head = whole | {"object": "chat.completion.chunk"}
    usage, (choice,) = head.pop("usage"), head.pop("choices")
    message = choice["message"]
    calls = [call | {"index": n} for n, call in enumerate(message.get("tool_calls") or ())]
    shown = [
        {name: message[name]} for name in ("reasoning_content", "content") if message.get(name)
    ]
    deltas = [{"role": "assistant", "content": ""}, *shown]
    deltas += [{"tool_calls": [call]} for call in calls]
    for delta, finish in [*((delta, None) for delta in deltas), ({}, choice["finish_reason"])]:
        part = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        yield f"data: {json.dumps(head | {'choices': [part]})}\n\n"
    if (body.get("stream_options") or {}).get("include_usage"):
        yield f"data: {json.dumps(head | {'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def error(refused: Refused) -> dict[str, Any]:
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {"error": {"message": str(refused), "type": kind, "code": refused.code, "param": None}}


def _message(message: Any, where: str) -> AgentMessage:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise bad(f"{where}: must be a message with a role")
    text = _text(message.get("content"), where)
    if message["role"] == "assistant":
        return _reply(message, text, where)
    if (role := ROLES.get(message["role"])) is None:
        raise bad(f"{where}: role {message['role']!r} is unknown")
    named = {n: message[n] for n in ("tool_call_id", "name") if isinstance(message.get(n), str)}
    return {"role": role, "content": text} | named


def _reply(message: dict[str, Any], text: str, where: str) -> AgentMessage:
    made: AgentMessage = {"role": "assistant", "content": text}
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        made["reasoning_content"] = str(reasoning)
    try:
        calls = [
            tool_call(
                str(call["function"]["name"]), str(call["function"]["arguments"]), str(call["id"])
            )
            for call in message.get("tool_calls") or ()
        ]
    except (KeyError, TypeError):
        raise bad(f"{where}: a tool call needs an id, a name and arguments") from None
    return made | ({"tool_calls": calls} if calls else {})


def _text(content: Any, where: str) -> str:
    """Returns the text of a message whose content is a string, None, or a list of text parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise bad(f"{where}: content is a {type(content).__name__}; it must be text")
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise bad(f"{where}: a part of type {kind!r} cannot be read; this policy reads text")
    return "\n".join(part["text"] for part in content)


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _positive(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise bad(f"{name} is {value!r}; it must be a positive integer")
    return value

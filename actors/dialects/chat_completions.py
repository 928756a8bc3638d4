"""Reads requests and writes answers in the form of OpenAI's chat completions."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from r3l.rollout.agent_chat import AgentMessage, Tool, tool_call

MODEL = "policy"
"""The name of the policy in /v1/models; a request may use any other name."""
UNTRAINED = "policy-untrained"
"""The policy's model name for untrained calls, such as those of a simulated user or a judge."""
ROLES = {"system": "system", "developer": "system", "user": "user", "tool": "tool"}
OF_MESSAGES = {
    "prefix": "end with a user's message",
    "partial": "end with a user's message",
    "function_call": "use tool_calls",
    "audio": "this policy reads text",
}
"""Fields of a message that cannot be honoured, and what to do instead."""
MOST_CHOICES = 1000
LONGEST_ARGUMENT = 200
NOT_ARGUMENTS = frozenset(
    "conversation messages tools documents chat_template add_generation_prompt tokenize padding "
    "continue_final_message truncation max_length return_tensors return_dict tokenizer_kwargs "
    "return_assistant_tokens_mask processor_kwargs".split()
)
"""Arguments of a chat template that are r3l's, and those of the function that renders it."""


class Refused(Exception):
    """A refusal of a request: an HTTP status, an error code and a sentence. `field`: the
    unsupported field."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.field = status, code, field


def bad(message: str) -> Refused:
    return Refused(400, "invalid_request_error", message)


def unsupported(field: str, message: str) -> Refused:
    """Returns the refusal of a field, in OpenAI's words. Some clients then ask again without the
    field."""
    return Refused(400, "unsupported_parameter", f"{field}: {message}", field)


def too_deep() -> Refused:
    """Returns the refusal of values that are nested too deeply to be read."""
    return bad("the request is nested too deeply to be read; nest its values less")


@dataclass(frozen=True)
class AgentRequest:
    """A request of any dialect. `choice`: OpenAI's `tool_choice`. `trained`: whether training may
    use the reply. `choices`: the reply must be one of these texts. `parallel`: whether the reply
    may have several tool calls. `begun`: whether the last message begins the reply (an assistant's,
    without a name). `arguments`: the request's arguments for the chat template, as JSON.
    `schema_name`: the name that the request gives its JSON schema."""

    messages: tuple[AgentMessage, ...]
    tools: tuple[Tool, ...] = ()
    choice: Any = "auto"
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: dict[str, Any] | None = None
    trained: bool = True
    choices: tuple[str, ...] = ()
    parallel: bool = True
    begun: bool = False
    arguments: str = "{}"
    schema_name: str = ""


def read(body: Mapping[str, Any]) -> AgentRequest:
    """Reads a request. Raises Refused if the gateway cannot do what the request asks."""
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
    if not isinstance(stop, str) and not all(isinstance(text, str) for text in stop):
        raise bad("stop: must be a text or a list of texts")
    schema, choices = shape_of(body)
    shown = tuple(_message(message, f"messages[{n}]") for n, message in enumerate(messages))
    return AgentRequest(
        messages=shown,
        tools=tuple(tools),
        choice=body.get("tool_choice") or "auto",
        max_tokens=_positive(body, "max_completion_tokens") or _positive(body, "max_tokens"),
        stop=(stop,) if isinstance(stop, str) else tuple(filter(None, stop)),
        json_schema=schema,
        trained=body.get("model") != UNTRAINED,
        choices=choices,
        parallel=body.get("parallel_tool_calls") is not False,
        begun=shown[-1]["role"] == "assistant" and not messages[-1].get("name"),
        arguments=template_arguments(body),
        schema_name=schema_name_of(body.get("response_format")),
    )


def shape_of(body: Mapping[str, Any]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Returns two things: the JSON schema that a reply must fit, or None; and the texts from which
    a reply must be chosen, if any. Raises Refused if the request's schema or texts are malformed,
    or if the request has several of them."""
    asked = body.get("structured_outputs") or {}
    schemas = {
        "response_format": schema_of(body.get("response_format")),
        "structured_outputs.json": _schema(asked, "json"),
        "structured_outputs.json_object": {"type": "object"} if asked.get("json_object") else None,
        "guided_json": _schema(body, "guided_json"),
        "guided_json_object": {"type": "object"} if body.get("guided_json_object") else None,
    }
    texts = {
        "structured_outputs.choice": asked.get("choice"),
        "guided_choice": body.get("guided_choice"),
    }
    given = [name for name, shape in [*schemas.items(), *texts.items()] if shape is not None]
    if len(given) > 1:
        raise bad(f"{' and '.join(given)}: a reply has one shape; leave out the others")
    for name, choices in texts.items():
        if choices is not None and not _are_choices(choices):
            raise bad(f"{name}: must be a list of 1 to {MOST_CHOICES} texts, none of them empty")
    chosen = next((choices for choices in texts.values() if choices), ())
    return next((s for s in schemas.values() if s is not None), None), tuple(chosen)


def _are_choices(choices: Any) -> bool:
    return 0 < len(choices) <= MOST_CHOICES and all(isinstance(t, str) and t for t in choices)


def schema_of(format_: Any) -> dict[str, Any] | None:
    kind = format_.get("type") if isinstance(format_, dict) else None
    if kind == "text" or not format_:
        return None
    if kind == "json_object":
        return {"type": "object"}
    schema = format_.get("json_schema") if isinstance(format_, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict) or "schema" not in schema:
        raise bad(f"response_format {kind!r}: use text, json_object, or json_schema with a schema")
    return _schema(schema, "schema", "response_format's ")


def _schema(holder: Mapping[str, Any], name: str, of: str = "") -> dict[str, Any] | None:
    """Reads a JSON schema, which may be a text of JSON."""
    schema = holder.get(name)
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
            json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            what = "no JSON, or holds half a surrogate pair, NaN or infinity"
            raise bad(f"{of}{name}: is a text, but {what}") from None
    if schema is not None and not isinstance(schema, dict):
        raise bad(f"{of}{name} is {schema!r:.60}; it must be a JSON schema, an object")
    return schema


def template_arguments(body: Mapping[str, Any]) -> str:
    """Returns a request's arguments for the chat template, as JSON with sorted keys."""
    made: dict[str, Any] = {}
    if effort := body.get("reasoning_effort"):
        made |= {"reasoning_effort": effort} | _thinking(effort != "none")
    if kind := (body.get("thinking") or {}).get("type"):
        made |= _thinking(kind != "disabled")
    if body.get("enable_thinking") is not None:
        made |= _thinking(body["enable_thinking"])
    made |= body.get("chat_template_kwargs") or {}
    for name, value in made.items():
        plain = isinstance(value, str | int | float | None) and len(str(value)) <= LONGEST_ARGUMENT
        if name in NOT_ARGUMENTS or not plain:
            raise bad(
                f"chat_template_kwargs.{name:.60}: not offered by this gateway; an argument of the "
                f"chat template is a text of at most {LONGEST_ARGUMENT} characters, a number, true "
                "or false"
            )
    return json.dumps(made, sort_keys=True)


def _thinking(wanted: bool) -> dict[str, bool]:
    return {"enable_thinking": wanted, "thinking": wanted}  # one family has it by the other name


def schema_name_of(format_: Any) -> str:
    """Returns the name that a request gives its JSON schema, or ""."""
    holder = format_.get("json_schema") if isinstance(format_, dict) else None
    given = holder if isinstance(holder, dict) else {}
    schema = given.get("schema")
    title = schema.get("title") if isinstance(schema, dict) else None
    return str(given.get("name") or title or "")


Answer = dict[str, Any]
"""A chat completion, as `write` makes it."""


def write(
    message: AgentMessage, number: int, *, cut: bool, read: int, sampled: int, stop: str = ""
) -> Answer:
    """Makes an answer from a reply. `number`: the call's place in the attempt. `read`, `sampled`:
    how many tokens the policy read and sampled. `stop`: the stop text that ended the reply."""
    finish = "length" if cut else "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    choice |= {"stop_reason": stop} if stop else {}  # vLLM's name for it
    usage = {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
        "usage": usage,
    }


def events(whole: Answer, body: Mapping[str, Any]) -> Iterator[str]:
    """Yields an answer as server-sent events. Each text and each call is sent in one piece."""
    head = whole | {"object": "chat.completion.chunk"}
    usage, (choice,) = head.pop("usage"), head.pop("choices")
    options = body.get("stream_options")
    counted = isinstance(options, dict) and bool(options.get("include_usage"))
    head |= {"usage": None} if counted else {}
    message, ending = choice["message"], dict(choice)
    del ending["message"]
    calls = [call | {"index": n} for n, call in enumerate(message.get("tool_calls") or ())]
    shown = [
        {name: message[name]} for name in ("reasoning_content", "content") if message.get(name)
    ]
    deltas = [{"role": "assistant", "content": None if message["content"] is None else ""}, *shown]
    deltas += [{"tool_calls": [call]} for call in calls]
    begun = {"index": 0, "finish_reason": None, "logprobs": None}
    for part in [*(begun | {"delta": delta} for delta in deltas), ending | {"delta": {}}]:
        yield _chunk(head | {"choices": [part]})
    if counted:
        yield _chunk(head | {"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def broken(refused: Refused) -> str:
    """Writes the event that ends a stream without an answer."""
    return _chunk(error(refused))


def _chunk(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def error(refused: Refused) -> dict[str, Any]:
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    said = {"message": str(refused), "type": kind, "code": refused.code, "param": refused.field}
    return {"error": said}


def _message(message: Any, where: str) -> AgentMessage:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise bad(f"{where}: must be a message with a role")
    for name, instead in OF_MESSAGES.items():
        if message.get(name):
            raise bad(f"{where}.{name}: not offered by this gateway; {instead}")
    text = _text(message.get("content"), where)
    if message["role"] == "assistant":
        return _reply(message, text, where)
    if (role := ROLES.get(message["role"])) is None:
        raise bad(f"{where}: role {message['role']!r} is unknown")
    named = {n: message[n] for n in ("tool_call_id", "name") if isinstance(message.get(n), str)}
    if isinstance(message.get("tool_call_id"), int):  # ids of calls become texts too
        named["tool_call_id"] = str(message["tool_call_id"])
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

"""Reads a row of the user's own conversations: OpenAI's form, or ShareGPT's.

    {"messages": [{"role": "user", "content": "7+5?"}, {"role": "assistant", "content": "12"}]}
    {"conversations": [{"from": "human", "value": "7+5?"}, {"from": "gpt", "value": "12"}]}

A field that affects what is learned is either read or refused by its name. Fields that only
describe a row are ignored.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from r3l.rollout.agent_chat import plain_arguments, tool_call
from r3l.text import plain

Role = Literal["system", "user", "assistant", "tool"]
SPEAKERS: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "model": "assistant", "chatgpt": "assistant",
    "function_call": "assistant", "tool": "tool", "function": "tool", "observation": "tool",
}  # fmt: skip
"""Who speaks, by `role` or `from`."""
MESSAGE_FIELDS = frozenset(
    "role from content value tool_calls function_call tool_call_id name reasoning_content "
    "reasoning thinking weight".split()
)
DESCRIBING = frozenset(
    "id index turn timestamp time created created_at date model metadata source language lang "
    "toxic redacted turn_identifier parent_id message_id author end_turn info".split()
)
"""Fields of a message that change nothing of what is learned."""
REFUSED = frozenset(
    "image images video videos audio audios documents chat_template chat_template_kwargs "
    "response_format weight mask".split()
)
"""Fields of a row that would change what is learned, and are not read. Others describe the row."""
ASKED = ("instruction", "context", "input")
"""Fields of a row that may ask something. They are refused unless a message holds their text."""


@dataclass(frozen=True)
class Message:
    """A message as a chat template takes it. `learned`: whether it is a reply to learn."""

    fields: dict[str, Any]
    learned: bool

    @property
    def role(self) -> str:
        return str(self.fields["role"])

    @property
    def is_plain(self) -> bool:
        """Whether it has nothing but a role and a text."""
        return len(self.fields) == 2


@dataclass(frozen=True)
class Conversation:
    """A row: messages that end in a reply, and tools. The first message may be a system's."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def is_plain(self) -> bool:
        return not self.tools and all(message.is_plain for message in self.messages)


def read_row(row: Any, special: Callable[[str], str | None] = lambda _: None) -> Conversation:
    """Reads a row. Raises ValueError, which names the field and the rule that it breaks.

    `special`: returns the first text of a special token in a reply. Such a reply is refused.
    """
    if not isinstance(row, dict):
        raise ValueError("must be an object with messages")
    row = {name: value for name, value in row.items() if value not in (None, "", [], {})}
    given = row.get("messages", row.get("conversations"))
    if not isinstance(given, list) or len(given) < 2:
        raise ValueError("messages: must be a list of at least two messages")
    if "messages" in row and "conversations" in row:
        raise ValueError("messages and conversations: keep one of them")
    for name in sorted(REFUSED & set(row)):
        raise ValueError(f"{name}: is not read; remove it, or the row")
    messages = [_message(each, place) for place, each in enumerate(given)]
    _check_asked(row, messages)
    _check_texts(messages, special)
    if "system" in row and "system_prompt" in row:
        raise ValueError("system and system_prompt: keep one of them")
    for name in [name for name in ("system", "system_prompt") if name in row]:
        if messages[0].role == "system":
            raise ValueError(f"{name}: there is a system message too; keep one of them")
        system = plain(row[name], name)
        messages.insert(0, Message({"role": "system", "content": system}, False))
    _check_order(messages)
    return Conversation(tuple(messages), _tools(row))


def _message(given: Any, place: int) -> Message:
    where = f"messages[{place}]"
    if not isinstance(given, dict):
        raise ValueError(f"{where}: must be an object with a role and a content")
    given = {name: value for name, value in given.items() if value not in (None, [], {})}
    speaker = given.get("role", given.get("from"))
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise ValueError(
            f"{where}.role: is {speaker!r:.40}; it must be one of {', '.join(SPEAKERS)}"
        )
    for name in sorted(set(given) - MESSAGE_FIELDS - DESCRIBING):
        raise ValueError(f"{where}.{name}: is not read; remove the field, or the row")
    role = SPEAKERS[speaker]
    content = _text(given.get("content", given.get("value", "")), f"{where}.content")
    if speaker == "function_call":
        content, given = "", given | {"function_call": content}
    fields: dict[str, Any] = {"role": role, "content": content}
    readers = {"assistant": _reply_fields, "tool": _result_fields, "user": _user_fields}
    fields |= readers.get(role, _no_fields)(given, where)
    return Message(fields, _is_learned(given, role, where))


def _reply_fields(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields of a reply besides its text."""
    fields: dict[str, Any] = {}
    if calls := _calls(given, where):
        fields["tool_calls"] = calls
    thoughts = [n for n in ("reasoning_content", "reasoning", "thinking") if given.get(n)]
    if len({str(given[name]) for name in thoughts}) > 1:
        raise ValueError(f"{where}: {' and '.join(thoughts)} differ; keep one of them")
    if thoughts:
        fields["reasoning_content"] = plain(given[thoughts[0]], f"{where}.{thoughts[0]}")
    _refuse(given, where, "name", "tool_call_id")
    return fields


def _result_fields(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields of a tool's result besides its text."""
    _refuse(
        given, where, "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"
    )
    return {
        name: plain(given[name], f"{where}.{name}")
        for name in ("tool_call_id", "name")
        if given.get(name)
    }


def _user_fields(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the speaker's name, which some templates show."""
    _no_fields({key: value for key, value in given.items() if key != "name"}, where)
    return {"name": plain(given["name"], f"{where}.name")} if given.get("name") else {}


def _no_fields(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    _refuse(
        given, where, "tool_calls", "function_call", "tool_call_id", "name", "reasoning_content",
        "reasoning", "thinking",
    )  # fmt: skip
    return {}


def _refuse(given: Mapping[str, Any], where: str, *names: str) -> None:
    for name in names:
        if given.get(name):
            raise ValueError(f"{where}.{name}: is not read in a message of this role; remove it")


def _is_learned(given: Mapping[str, Any], role: Role, where: str) -> bool:
    """Whether a message is learned: a reply, unless its weight is 0."""
    weight = given.get("weight", 1 if role == "assistant" else 0)
    if isinstance(weight, str) or weight not in (0, 1):
        raise ValueError(f"{where}.weight: is {weight!r:.40}; it must be 0 or 1")
    if weight and role != "assistant":
        raise ValueError(f"{where}.weight: only replies of the assistant are learned; remove it")
    return bool(weight)


def _text(content: Any, where: str) -> str:
    """Returns a content, or the texts of its parts, a line each."""
    if not isinstance(content, list):
        return plain(content, where)
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or set(part) - {"type", "text"}:
            raise ValueError(f"{where}: a part of type {kind!r:.40} is not read; only text is")
    return "\n".join(plain(part.get("text"), where) for part in content)


def _calls(given: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    calls = given.get("tool_calls", [])
    if "function_call" in given:
        if calls:
            raise ValueError(f"{where}: tool_calls and function_call: keep one of them")
        call = given["function_call"]
        calls = [{"function": plain_arguments(call) if isinstance(call, str) else call}]
    if not isinstance(calls, list):
        raise ValueError(f"{where}.tool_calls: must be a list")
    return [_call(call, f"{where}.tool_calls[{n}]", n) for n, call in enumerate(calls)]


def _call(call: Any, where: str, place: int) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise ValueError(f"{where}: must be a call of a function, with its name and arguments")
    name, arguments = function.get("name"), function.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}.function.name: must be text")
    if isinstance(arguments, str | None):
        arguments = plain_arguments(arguments or "{}")
    if not isinstance(arguments, dict):
        raise ValueError(f"{where}.function.arguments: must be an object, or JSON of one")
    return tool_call(name, arguments, str(call.get("id") or f"call{place:05d}"))


def _tools(row: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Returns the row's tools in OpenAI's form."""
    if "tools" in row and "functions" in row:
        raise ValueError("tools and functions: keep one of them")
    name = "functions" if "functions" in row else "tools"
    tools = row.get(name, [])
    if isinstance(tools, str):  # data sets often hold them as JSON
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            raise ValueError(f"{name}: is text, but not JSON") from None
    if not isinstance(tools, list):
        raise ValueError(f"{name}: must be a list")
    return tuple(_tool(tool, f"{name}[{n}]") for n, tool in enumerate(tools))


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if isinstance(tool, dict) and "function" not in tool and "name" in tool:
        tool = {"type": "function", "function": tool}
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"{where}: must be a function with a name")
    return dict(tool)


def _check_asked(row: Mapping[str, Any], messages: Sequence[Message]) -> None:
    for name in [name for name in ASKED if name in row]:
        told = isinstance(row[name], str) and row[name].strip()
        if not told or not any(told in message.fields["content"] for message in messages):
            raise ValueError(f"{name}: is not read; write it into a message, or remove it")


def _check_texts(messages: Sequence[Message], special: Callable[[str], str | None]) -> None:
    """Raises ValueError if a reply holds a special token's text, which would end the reply."""
    for place, message in enumerate(messages):
        for field in ("content", "reasoning_content", "tool_calls"):
            value = message.fields.get(field, "") if message.role == "assistant" else ""
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if found := special(text):
                raise ValueError(
                    f"messages[{place}].{field}: holds {found}, a special token of the model; "
                    "remove it from the reply, or remove the row"
                )


def _check_order(messages: Sequence[Message]) -> None:
    """Raises ValueError unless each reply answers a user, or the results of all its calls."""
    turns = messages[1:] if messages[0].role == "system" else messages
    open_calls: list[str] | None = None  # ids without a result; None: a user is next
    before = "assistant"
    for place, message in enumerate(turns):
        where = f"messages[{place + len(messages) - len(turns)}]"
        if message.role == "tool":
            waiting = open_calls or []
            answered = str(message.fields.get("tool_call_id") or next(iter(waiting), ""))
            if answered not in waiting:
                raise ValueError(f"{where}: its role is tool, but no call before it waits for it")
            waiting.remove(answered)
        elif message.role == "user" and before == "assistant" and not open_calls:
            open_calls = None
        elif message.role == "assistant" and before in ("user", "tool") and not open_calls:
            open_calls = [call["id"] for call in message.fields.get("tool_calls", ())]
        elif open_calls:
            raise ValueError(
                f"{where}: the result of the call {open_calls[0]} is missing; it must come before"
            )
        else:
            raise ValueError(f"{where}: {_TURNS}")
        before = message.role
    if before != "assistant":
        raise ValueError(_TURNS)
    for place, message in enumerate(messages):
        empty = not message.fields["content"].strip() and "tool_calls" not in message.fields
        if message.learned and empty:
            raise ValueError(f"messages[{place}].content: is empty, so that nothing is learned")
    if not any(message.learned for message in messages):
        raise ValueError("weight: is 0 for every reply, so that nothing is learned; remove the row")


_TURNS = "user and assistant must take turns, and the assistant must be last"

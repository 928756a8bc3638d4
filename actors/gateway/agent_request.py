"""A request for one reply and its answer, whatever dialect the agent speaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.gateway.parsers import Reply
from r3l.rollout.agent_chat import AgentMessage, Tool

MODEL = "policy"
"""The name of the policy in /v1/models; a request may name any."""


class Refused(Exception):
    """A request that gets an error as its answer: HTTP status, code and sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class AgentRequest:
    """What an agent asks for. `choice`: auto, none, required, or the tool to call as OpenAI writes
    it. `asked`: sampling parameters that r3l decides instead."""

    messages: tuple[AgentMessage, ...]
    tools: tuple[Tool, ...] = ()
    choice: Any = "auto"
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: dict[str, Any] | None = None
    stream: bool = False
    model: str = MODEL
    asked: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A reply with its number in the attempt. `finish`: stop, length or tool_calls."""

    number: int
    reply: Reply
    finish: str
    prompt_tokens: int
    reply_tokens: int
    created: int


@dataclass(frozen=True)
class Dialect:
    """How one API writes requests, answers, the events of a stream and errors.

    `read` raises Refused for a request that cannot be honoured.
    """

    name: str
    read: Callable[[dict[str, Any]], AgentRequest]
    write: Callable[[Answer, AgentRequest, dict[str, Any]], dict[str, Any]]
    events: Callable[[Answer, AgentRequest, dict[str, Any]], Iterator[str]]
    error: Callable[[Refused], dict[str, Any]]


def text_of(content: Any, where: str) -> str:
    """Returns the text of a message: text, nothing, or parts that are all text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{where}: content is a {type(content).__name__}; it must be text")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise bad(f"{where}: a part of type {kind!r} cannot be read; this policy reads text")
    return "\n".join(texts)


def bad(message: str) -> Refused:
    """Makes the refusal of a malformed request."""
    return Refused(400, "invalid_request_error", message)


def refuse_what_is_not_offered(body: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises Refused if a request asks for something that no answer could honour."""
    for name in names:
        if body.get(name):
            raise bad(f"{name}: not offered by this gateway; leave it out")


def number_of(body: Mapping[str, Any], *names: str) -> int | None:
    """Returns the first of these fields that is set. Raises Refused unless it is a positive
    integer."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise bad(f"{name} is {value!r}; it must be a positive integer")
        return value
    return None

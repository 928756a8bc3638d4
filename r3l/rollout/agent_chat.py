"""Encodes the messages of an agent's calls: tools, tool results, several messages in a turn.

    open(messages, tools) · <reply> · following(calls, messages, tools) · <reply> · …

`following` renders new messages after a short made-up conversation, and then removes the made-up
text. A new AgentChat tests that the result is the same as in a rendering of the whole chat. A
tokenizer may have several named templates. Then chats with tools are written with the template
`tool_use`, all others with `default`. Replies are read by actors.gateway.parsers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from r3l.errors import UserError
from r3l.models.special_text import without_marks
from r3l.rollout.chat import ChatFormat

AgentMessage = dict[str, Any]
"""A chat message with `role` and `content`, and optional `tool_calls`, `tool_call_id`, `name` and
`reasoning_content`. A call's arguments are a mapping, or text if they are not a JSON object."""
Tool = dict[str, Any]

_MOST_OTHERS = 16
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
PIECE = 1 << 14
"""Characters that are tokenised at once to find out whether a text is too long."""
SLACK = 64
_ASKED = {"role": "user", "content": "u"}
_REPLIED: AgentMessage = {"role": "assistant", "content": "r"}


def tool_call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    """Makes one item of `tool_calls`, in the form that templates expect."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool(name: str) -> Tool:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    shape = {"name": name, "description": "adds one", "parameters": parameters}
    return {"type": "function", "function": shape}


PROBE_TOOLS = (_tool("add_one"), _tool("add_two"))
PROBE_REPLY = {
    "role": "assistant",
    "content": "",
    "tool_calls": [tool_call("add_one", {"a": 1}, "abcdefgh1")],
}
PROBE_CALLS = PROBE_REPLY | {
    "tool_calls": [
        tool_call("add_one", {"a": 1}, "abcdefgh2"),
        tool_call("add_two", {"a": 2}, "abcdefgh3"),
    ]
}
_RESULTS = tuple(
    {"role": "tool", "content": f"it is {n}", "tool_call_id": f"abcdefgh{n}", "name": name}
    for n, name in ((1, "add_one"), (2, "add_one"), (3, "add_two"))
)
_PROBE: tuple[tuple[AgentMessage, Sequence[AgentMessage]], ...] = (
    (PROBE_REPLY, _RESULTS[:1]),
    (PROBE_CALLS, _RESULTS[1:]),
    ({"role": "assistant", "content": "done"}, [{"role": "user", "content": "thank you"}]),
)


def add_tools(chat: ChatFormat) -> None:
    """If a tokenizer's chat template shows no tools, extends it to show tools in Hermes' form."""
    if not _shows_tools(chat):
        before = Path(__file__).with_name("tools.jinja").read_text().rstrip()
        own = chat.tokenizer.chat_template  # several, by name, with some models
        chat.tokenizer.chat_template = (
            {name: before + text for name, text in own.items()}
            if isinstance(own, dict)
            else before + own
        )


def _shows_tools(chat: ChatFormat) -> bool:
    try:
        return "add_two" in chat.render([_ASKED], PROBE_TOOLS, prompt=True)
    except UserError:
        return False


class TextTooLong(UserError):
    """A text has more tokens than the context of the policy."""


def check_tokens(tokenizer: Any, text: str, most: int) -> None:
    """Raises TextTooLong if a text has more than `most` tokens.

    Tokenises the text piece by piece and stops where the limit is passed, so the cost depends on
    the limit, not on the text. A cut between pieces adds fewer than SLACK tokens.
    """
    counted = 0
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        counted += max(0, len(tokenizer.encode(piece, add_special_tokens=False)) - SLACK)
        if counted > most:
            raise TextTooLong(f"the messages have more than {most} tokens; shorten them")


class AgentChat:
    """A chat format for tool calls. Raises UserError if the template takes tools, but appending a
    message changes earlier text.

    Some templates, such as Mistral's, accept only tool-call ids of nine letters and digits. Such a
    template gets ids of this form in place of the real ones, and equal ids stay equal.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self._others: dict[str, AgentChat] = {}
        """The formats with other arguments of the template, the newest last."""
        if self.takes_tools and (difference := self._first_difference()):
            raise UserError(
                f"the chat template of {chat.tokenizer.name_or_path!r} cannot write tool calls "
                f"turn by turn: {difference}; an agent's calls need a template that appends a tool "
                "result and leaves the earlier text unchanged"
            )

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template shows the tools that it is given."""
        return _shows_tools(self.chat)

    @cached_property
    def _wants_short_ids(self) -> bool:
        """Whether the template refuses tool-call ids other than nine letters and digits."""
        tools = PROBE_TOOLS if self.takes_tools else ()
        refused = []
        for call_id in ("abcdefgh1", "call_1"):
            reply = PROBE_REPLY | {"tool_calls": [tool_call("add_one", {"a": 1}, call_id)]}
            result = _RESULTS[0] | {"tool_call_id": call_id}
            try:
                self.chat.render([_ASKED, reply, result], tools, prompt=True)
            except UserError:
                refused.append(call_id)
        return refused == ["call_1"]

    def with_arguments(self, arguments: str) -> AgentChat:
        """Returns the chat format with further arguments for the template. `arguments`: a mapping
        as JSON. Leaves out arguments that the template does not read. Raises UserError if the
        template does not work with the others."""
        read = self.read_arguments(arguments)
        if not read:
            return self
        key = json.dumps(read, sort_keys=True)
        if key not in self._others:
            if len(self._others) >= _MOST_OTHERS:
                self._others.pop(next(iter(self._others)))
            try:
                chat = ChatFormat(
                    self.chat.tokenizer,
                    earlier_reasoning=self.chat.earlier_reasoning,
                    arguments=read,
                )
                chat.special.counted = self.chat.special.counted
                self._others[key] = AgentChat(chat)
            except UserError as error:
                raise UserError(f"chat_template_kwargs {key:.300}: {error}") from None
        return self._others[key]

    def read_arguments(self, arguments: str) -> dict[str, Any]:
        """Returns the arguments whose names occur in the template. `arguments`: a mapping as
        JSON."""
        given = json.loads(arguments)
        template = str(self.chat.tokenizer.chat_template) if given else ""
        return {n: v for n, v in given.items() if re.search(rf"\b{re.escape(n)}\b", template)}

    def open(
        self,
        messages: Sequence[AgentMessage],
        tools: Sequence[Tool],
        most_tokens: int | None = None,
    ) -> tuple[int, ...]:
        """Encodes a whole conversation and the prompt for a reply. Raises UserError if the
        template refuses it, TextTooLong if it surely has more than `most_tokens`."""
        shown = self._with_ids(self._fitting(messages))
        text = self.chat.render(shown, tools, prompt=True)
        return self._checked(text, most_tokens).encode(text)

    def following(
        self,
        calls: Sequence[tuple[str, str]],
        messages: Sequence[AgentMessage],
        tools: Sequence[Tool] = (),
        most_tokens: int | None = None,
    ) -> tuple[int, ...]:
        """Encodes the messages after a reply, and the prompt for the next reply.

        `calls`: id and name of each tool call in the reply. `tools`: the tools of the conversation.
        The reply's end-of-turn token is not part of the result. Raises UserError if the template
        refuses the messages, TextTooLong if they surely have more than `most_tokens`.
        """
        text = self._following(calls, messages, tools)
        return self._checked(text, most_tokens).encode(text)

    def _checked(self, text: str, most_tokens: int | None) -> ChatFormat:
        """Returns the chat format. Raises TextTooLong if `text` surely has more than `most_tokens`
        tokens."""
        if most_tokens is not None and len(text) > 2 * most_tokens:
            check_tokens(self.chat.tokenizer, without_marks(text), most_tokens)
        return self.chat

    def _following(
        self,
        calls: Sequence[tuple[str, str]],
        messages: Sequence[AgentMessage],
        tools: Sequence[Tool],
    ) -> str:
        reply = _REPLIED
        if calls and self.takes_tools:
            made = [tool_call(name, {}, call_id) for call_id, name in calls]
            reply = {"role": "assistant", "content": "", "tool_calls": made}
        before, *after = self._with_ids([reply, *messages])
        plain = reply is _REPLIED and not tools
        ends = self._ends if plain else self._count_ends([_ASKED, before], tools)
        whole = self.chat.render([_ASKED, before, *after], tools, prompt=True)
        return whole.split(self.chat.end, ends)[-1]

    @cached_property
    def _ends(self) -> int:
        """How many end-of-turn tokens a chat of one message and one plain reply has."""
        return self._count_ends([_ASKED, _REPLIED], ())

    def _count_ends(self, messages: Sequence[AgentMessage], tools: Sequence[Tool]) -> int:
        return self.chat.render(messages, tools).count(self.chat.end)

    def _with_ids(self, messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        """Replaces the ids of tool calls that the template refuses."""
        with_calls = any(m.get("tool_calls") or m.get("tool_call_id") for m in messages)
        if not with_calls or not self._wants_short_ids:
            return messages
        shown = []
        for message in messages:
            made = dict(message)
            if calls := message.get("tool_calls"):
                made["tool_calls"] = [call | {"id": _short_id(call["id"])} for call in calls]
            if answered := message.get("tool_call_id"):
                made["tool_call_id"] = _short_id(answered)
            shown.append(made)
        return shown

    def _fitting(self, messages: Sequence[AgentMessage]) -> list[AgentMessage]:
        """Merges the system message into the user message if the template has no system role."""
        both = len(messages) > 1 and (messages[0]["role"], messages[1]["role"])
        if both != ("system", "user"):
            return list(messages)
        opening = self.chat.opening(messages[0]["content"], messages[1]["content"])
        return [*opening, *messages[2:]]

    def _first_difference(self) -> str:
        """Renders a test conversation with tools, turn by turn and as a whole. Returns the first
        difference, or ""."""
        messages: list[AgentMessage] = self.chat.opening("be brief", "add, please")
        grown = self.chat.render(messages, PROBE_TOOLS)
        for turn, (reply, results) in enumerate(_PROBE):
            messages += [reply, *results]
            try:
                whole = self.chat.render(messages, PROBE_TOOLS, prompt=True)
            except UserError:
                if reply is not PROBE_CALLS:
                    raise
                del messages[-3:]  # a template for one call at a time
                continue
            calls = [(c["id"], c["function"]["name"]) for c in reply.get("tool_calls", ())]
            added = self.chat.end + self._following(calls, results, PROBE_TOOLS)
            if not whole.startswith(grown):
                return f"turn {turn} changes earlier text"
            if not whole.endswith(added):
                at = min(len(added), 60)
                return f"turn {turn} ends with {whole[-at:]!r} instead of {added[-at:]!r}"
            grown = self.chat.render(messages, PROBE_TOOLS)
        return ""


def _short_id(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]


def plain_arguments(text: str) -> Any:
    """Parses a tool call's arguments. Returns `text` unchanged if it is not a JSON object, or if it
    holds half a surrogate pair, which no token has."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text

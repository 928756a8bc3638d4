"""The tape of an attempt: all calls of its agent (`TapedCall`), as compressed JSON.

`first_difference` compares two tapes call by call, and names the first one whose requests differ.
"""

import re
import zlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from r3l.errors import RecordError
from r3l.records import Record

LIMIT = 512 << 10  # bytes of a compressed tape; a group has many of them
UNPACKED = 256 << 20
WHOLE = "stop"
"""The `finish` of a call to another model if its answer was kept whole and so can be repeated."""
MCP = "mcp"
"""The `dialect` of a call to an MCP server; the `model` of this call is mcp:NAME."""
NEAR = 40  # characters shown before and after a difference
LONGEST_MISSED = 2000
"""The most characters kept of a free reply that did not fit its request."""
UNTRAINED = {
    "grammar": "a grammar shaped it",
    "asked": "its model is policy-untrained",
    "base": "the retried attempt trains it",
    "unseen": "the agent did not receive it",
    "side": "it is not in the main conversation",
    "no_reply": "there is no reply",
    "missed": "it did not fit its request, and was not the answer",
}
"""Why a reply is not trained, in words."""
BY_REQUEST = ("grammar", "asked")
"""The reasons for which a reply is trained in no attempt."""


class TapedCall(Record):
    """One call of an agent.

    `request_hash`: equal for requests of the same meaning. `parent`: the earlier call whose
    conversation this call extends, or -1. `messages`: what the request adds after the reply of
    `parent`. `reply`: {} if there was none. `began`: seconds after the attempt's start. `tokens`:
    the reply's length. `conversation`: the number of the conversation with the reply, -1 if not
    recorded. `read`: how many tokens precede the reply in its conversation. `trained`: whether the
    reply is trained; `untrained`: if not, why: a key of UNTRAINED, or "" if not recorded. `stop`:
    the stop text that ended the reply. `missed`: if a grammar shaped the reply, the beginning of
    the free reply, which did not fit the request.

    `model`: "" for the policy. Calls to other models and MCP servers are at the end of the tape.
    Their `messages` and `reply` have the bodies of the request and the answer, cut if long. Their
    `finish` is WHOLE, "cut" (the answer was cut) or the HTTP status of an error.
    """

    dialect: str
    request_hash: str = msgspec.field(name="digest")
    parent: int
    messages: tuple[dict[str, Any], ...]
    reply: dict[str, Any] = msgspec.field(default_factory=dict)
    finish: str = ""
    tools: tuple[str, ...] = ()
    began: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    read: int = 0
    conversation: int = -1
    trained: bool = True
    model: str = ""
    stop: str = ""
    untrained: str = ""
    missed: str = ""


def write_tape(calls: Sequence[TapedCall]) -> bytes:
    """Compresses a tape. If the tape exceeds LIMIT, removes the text of calls to other models and
    MCP servers. If that is not enough, also removes the messages of all calls."""
    without_others = [
        msgspec.structs.replace(call, messages=(), reply={}) if call.model else call
        for call in calls
    ]
    short = [msgspec.structs.replace(call, messages=()) for call in without_others]
    for kept in (calls, without_others):
        tape = zlib.compress(msgspec.json.encode(kept))
        if len(tape) <= LIMIT:
            return tape
    return zlib.compress(msgspec.json.encode(short))


def read_tape(tape: bytes) -> list[TapedCall]:
    """Reads a tape. Raises RecordError if it is damaged."""
    if not tape:
        return []
    try:
        text = zlib.decompressobj().decompress(tape, UNPACKED)
        return msgspec.json.decode(text, type=list[TapedCall])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise RecordError(f"the tape of an attempt cannot be read ({error})") from None


def messages_of(calls: Sequence[TapedCall], number: int) -> list[dict[str, Any]]:
    """Returns all messages of a call's request."""
    messages: list[dict[str, Any]] = []
    while number >= 0:
        call = calls[number]
        messages[:0] = call.messages
        number = call.parent
        if number >= 0:
            messages.insert(0, calls[number].reply)
    return messages


def first_difference(
    expected: Sequence[TapedCall], got: Sequence[TapedCall], ignore: Sequence[str] = ()
) -> str:
    """Describes the first difference between two tapes; "" if there is none. `ignore`: patterns for
    text that may differ."""
    for number, (one, other) in enumerate(zip_longest(expected, got)):
        if one is None or other is None:
            return f"call {number}: made in only one of the attempts"
        if one.request_hash != other.request_hash:
            shown = difference(messages_of(expected, number), messages_of(got, number), ignore)
            return f"call {number}: {shown}"
    return ""


def difference(
    expected: Sequence[dict[str, Any]], got: Sequence[dict[str, Any]], ignore: Sequence[str] = ()
) -> str:
    """Names the first message in which two requests differ, and shows where."""
    for number, (one, other) in enumerate(zip_longest(expected, got)):
        before, after = _shown(one, ignore), _shown(other, ignore)
        if before == after:
            continue
        pairs = zip(before, after, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
        where = slice(max(0, at - NEAR), at + NEAR)
        return f"message {number} has {after[where]!r} instead of {before[where]!r}"
    return "the messages are equal, but the tools or parameters differ"


def without(text: str, ignore: Sequence[str]) -> str:
    """Removes the parts of `text` that a pattern in `ignore` matches."""
    for pattern in ignore:
        text = re.sub(pattern, "", text)
    return text


def _shown(message: dict[str, Any] | None, ignore: Sequence[str]) -> str:
    """Writes the content of a message, without the ids of tool calls."""
    if message is None:
        return "no message"
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    made = [f"{call['name']}({call['arguments']})" for call in calls]
    content = without(message.get("content") or "", ignore)
    content = content.strip() if message["role"] == "assistant" else content
    return " ".join([f"{message['role']}:", content, *made])


def call_tree(calls: Sequence[TapedCall]) -> list[tuple[int, int]]:
    """Lists the calls depth first, as (number, depth). A conversation that branches off another one
    is one level deeper."""
    after: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        after.setdefault(call.parent, []).append(number)
    rows, waiting = [], [(number, 0) for number in reversed(after.get(-1, []))]
    while waiting:
        number, depth = waiting.pop()
        rows.append((number, depth))
        first, *others = after.get(number) or [-1]
        waiting += [(other, depth + 1) for other in reversed(others)]
        waiting += [(first, depth)] * (first >= 0)
    return rows


def conversations(calls: Sequence[TapedCall]) -> list[list[int]]:
    """Lists all conversations. Each conversation is a list of call numbers, in order."""
    parents = {call.parent for call in calls}
    found = []
    for leaf in (number for number in range(len(calls)) if number not in parents):
        chain, number = [], leaf
        while number >= 0:
            chain.append(number)
            number = calls[number].parent
        found.append(chain[::-1])
    return found

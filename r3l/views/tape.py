"""The tape of an attempt: every call that its agent made, as compressed JSON."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from r3l.errors import RecordError
from r3l.records import Record

LIMIT = 512 << 10  # bytes of a compressed tape; a group has many of them
UNPACKED = 256 << 20


class TapedCall(Record):
    """One call of an agent.

    `digest`: of the request's body. `parent`: the earlier call whose conversation it continues, -1
    for a new conversation. `messages`: the new ones since `parent`. `reply`: the message that the
    agent got. `asked`: the agent's sampling parameters, which r3l did not use. `began`: seconds
    after the attempt's start; `seconds`: duration. `trained`: whether its reply is trained.
    """

    dialect: str
    digest: str
    parent: int
    messages: tuple[dict[str, Any], ...]
    reply: dict[str, Any] = msgspec.field(default_factory=dict)
    finish: str = ""
    tools: tuple[str, ...] = ()
    asked: dict[str, str] = msgspec.field(default_factory=dict)
    began: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    trained: bool = True


def write_tape(calls: Sequence[TapedCall]) -> bytes:
    """Compresses a tape. A tape above LIMIT keeps its calls without the messages."""
    tape = zlib.compress(msgspec.json.encode(list(calls)))
    if len(tape) > LIMIT:
        short = [msgspec.structs.replace(call, messages=()) for call in calls]
        tape = zlib.compress(msgspec.json.encode(short))
    return tape


def read_tape(tape: bytes) -> list[TapedCall]:
    """Reads a tape. Raises RecordError if it is damaged."""
    if not tape:
        return []
    try:
        text = zlib.decompressobj().decompress(tape, UNPACKED)
        return msgspec.json.decode(text, type=list[TapedCall])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise RecordError(f"the tape of an attempt cannot be read ({error})") from None

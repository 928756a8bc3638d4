"""Makes results from the service's replies: from each part of a reply, and from all parts together.

Call ─ request ─► service ─ reply ─► parse ─► result, or Rest: the Call for the next part
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Self, TypeVar, overload

from msgspec.structs import replace

from buffer.client.batch_memory import check_fits
from buffer.storage.stored_rows import DrawRow, Status
from buffer.storage.transaction import read_group
from buffer.wire import messages, operations
from buffer.wire.operations import (
    NAMES,
    Amount,
    DrawHead,
    Groups,
    Ids,
    Lease,
    Records,
    Wait,
)
from buffer.wire.parts import joined
from buffer.wire.sockets import LARGE, Frame
from r3l import codec
from r3l.algorithms.batch import Batch
from r3l.errors import RecordError
from r3l.records import Group, Recalled, Record, ReflectionRecord, SlotResult

T = TypeVar("T")


class _Lazy(Sequence[T]):
    """A sequence that is made at its first use, by the thread that uses it."""

    def __init__(self, make: Callable[[], list[T]], length: int) -> None:
        self._make, self._length = make, length

    @cached_property
    def _items(self) -> list[T]:
        return self._make()

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        return self._items[at]


@dataclass(frozen=True, kw_only=True)
class Draw(Batch):
    """A drawn batch. `row`: the stored draw. `now`: the state of each group. `records`: the encoded
    groups, then the encoded recalled attempts; empty once they are decoded. `groups`: in the order
    of their ids."""

    groups: Sequence[Group] = field(compare=False, repr=False)
    recalled: Sequence[Recalled] = field(default=(), compare=False, repr=False)
    version: int
    row: DrawRow
    now: tuple[Status, ...] = field(repr=False)
    records: Sequence[Frame] = field(repr=False)

    @classmethod
    def read(cls, row: DrawRow, now: tuple[Status, ...], records: Sequence[Frame]) -> Self:
        """Makes a draw from its records, which are decoded when they are used. Leaves out recalled
        attempts that are empty. Raises RecordError if a group is missing."""
        if len(records) < len(now):
            raise RecordError(f"draw: the reply has {len(records)} of {len(now)} groups")
        records = [*records[: len(now)], *filter(len, records[len(now) :])]
        joined = records[len(now) :]
        return cls(
            groups=_Lazy(lambda: _groups(now, records[: len(now)]), len(now)),
            weights=row.weights,
            recalled=_Lazy(lambda: [codec.decode(Recalled, data) for data in joined], len(joined)),
            replayed=row.replayed,
            version=row.version,
            row=row,
            now=now,
            records=records,
        )

    def decoded(self) -> Self:
        """Returns the draw with its groups and recalled attempts, without the encoded records."""
        return dataclasses.replace(
            self, groups=list(self.groups), recalled=list(self.recalled), records=()
        )

    @property
    def draw_id(self) -> int:
        """The draw's number. A commit names it."""
        return self.row.draw_id

    @property
    def recall_lost(self) -> int:
        """Number of lost recalled attempts. Their groups were evicted or damaged."""
        return len(self.row.recalled) - len(self.recalled)


def _groups(now: Sequence[Status], encoded: Sequence[Frame]) -> list[Group]:
    if len(now) != len(encoded):
        raise RecordError(f"reply: has {len(encoded)} groups but announces {len(now)}")
    return [read_group(data, state) for data, state in zip(encoded, now, strict=True)]


def _result(reply: Any, _: Sequence[Frame]) -> Any:
    """Makes a method's result from a reply."""
    match reply:
        case Amount():
            return reply.count
        case Ids():
            return reply.group_ids
    return reply


@dataclass(frozen=True)
class Rest:
    """Part of an answer has arrived. `call`: asks for the next part. `line`: describes what has
    arrived."""

    call: Call[Any]
    line: str


@dataclass(frozen=True)
class Call(Generic[T]):
    """A client's request. `parse` makes the result from the reply, or returns what to ask next. If
    the result is None, the client repeats the request. After `wait_s` seconds without a result, the
    client calls `gave_up`. `held_s`: how many seconds the service may keep the request."""

    arguments: Record
    parse: Callable[[Any, Sequence[Frame]], T | Rest] = _result
    wait_s: float = 0.0
    gave_up: Callable[[], object] = lambda: None
    held_s: float = 0.0

    @property
    def operation(self) -> str:
        return NAMES[type(self.arguments)]

    def frames(self, rid: str, *, whole: bool = True) -> list[Frame]:
        """Returns the request. If the request is large and `whole` is false, returns an inquiry
        about it instead."""
        frames = messages.request_frames(self.operation, rid, self.arguments)
        if whole or len(frames[1]) < LARGE:
            return frames
        return messages.inquiry_frames(self.operation, rid)

    def read(self, frames: Sequence[Frame]) -> T | Rest:
        """Returns the operation's result or what to ask next, or raises the error that the reply
        contains."""
        return self.parse(*messages.read_reply(self.operation, frames))


def as_lease(reply: Lease | Wait, frames: Sequence[Frame]) -> Lease | Wait:
    """Makes a lease from a reply and from the results and reflections that follow it."""
    if isinstance(reply, Wait):
        return reply
    if sum(reply.following) != len(frames):
        raise RecordError(f"lease: has {len(frames)} records but announces {sum(reply.following)}")
    rest = iter(frames)
    accepted, partial = (
        tuple(codec.decode(SlotResult, next(rest)) for _ in range(count))
        for count in reply.following[:2]
    )
    reflections = tuple(codec.decode(ReflectionRecord, each) for each in rest)
    return replace(
        reply, accepted=accepted, partial=partial, reflections=reflections, following=(0, 0, 0)
    )


def _several(reply: Groups, frames: Sequence[Frame], found: list[Group]) -> None:
    """Adds the groups of a part to those that were found."""
    found += _groups(reply.now, joined(reply.frames, frames))


def query_call(request: operations.QueryGroups, found: list[Group]) -> Call[list[Group]]:
    def parse(reply: Groups, frames: Sequence[Frame]) -> list[Group] | Rest:
        _several(reply, frames, found)
        left = request.limit - len(reply.now)
        if not reply.before or left <= 0:
            return found
        rest = replace(request, limit=left, before=reply.before)
        return Rest(query_call(rest, found), f"query: {len(found)} groups so far")

    return Call(request, parse)


def get_call(group_ids: Sequence[str], found: list[Group]) -> Call[list[Group]]:
    def parse(reply: Groups, frames: Sequence[Frame]) -> list[Group] | Rest:
        _several(reply, frames, found)
        rest = group_ids[len(reply.now) :]
        if rest and reply.now:
            return Rest(get_call(rest, found), f"get: {len(found)} groups so far")
        if rest:
            raise RecordError(f"get: the reply has no group, but {len(rest)} are missing")
        return found

    return Call(operations.GetGroups(group_ids), parse)


def as_draw(head: DrawHead, row: DrawRow, records: list[Frame]) -> Draw | Rest:
    """Returns a draw once all its records have come. Raises LimitExceeded if they do not fit."""
    left = len(row.groups) + len(row.recalled) - len(records)
    if left <= 0:
        return Draw.read(row, head.now, records)
    check_fits(row, records, left)

    def parse(reply: Records, frames: Sequence[Frame]) -> Draw | Rest:
        new = joined(reply.frames, frames)
        if not new:
            raise RecordError(f"draw {row.draw_id}: the reply has none of the {left} other records")
        records.extend(new)
        return as_draw(head, row, records)

    rest = Call(operations.GetDrawn(row.draw_id, len(records)), parse)
    return Rest(rest, f"draw {row.draw_id}: {len(records)} of {len(records) + left} records")

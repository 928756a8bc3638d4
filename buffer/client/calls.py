"""Offers the buffer's operations as methods of both clients.

Each method makes a Call, which the client sends. BufferClient returns the result.
AsyncBufferClient returns a coroutine.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

import msgspec
from msgspec.structs import replace

from buffer.storage.stored_rows import DrawRow, Status
from buffer.storage.transaction import read_group
from buffer.wire import messages, operations
from buffer.wire.operations import NAMES, Amount, DrawHead, Groups, Ids, PutAck, Request
from buffer.wire.sockets import Frame
from r3l import codec
from r3l.algorithms.batch import Batch
from r3l.errors import RecordError
from r3l.records import (
    Group,
    Recalled,
    Record,
    ReflectionRecord,
    SlotResult,
    Task,
    Trajectory,
    done,
)
from r3l.records.imported import as_imported, reflection_as_imported

Made = SlotResult | ReflectionRecord

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
    groups, then the encoded recalled attempts. `groups`: in the order of their ids."""

    groups: Sequence[Group] = field(compare=False, repr=False)
    recalled: Sequence[Recalled] = field(default=(), compare=False, repr=False)
    version: int
    row: DrawRow
    now: tuple[Status, ...] = field(repr=False)
    records: Sequence[Frame] = field(repr=False)

    @classmethod
    def read(cls, row: DrawRow, now: tuple[Status, ...], records: Sequence[Frame]) -> Self:
        """Makes a draw from a reply, whose records are decoded when they are used. Raises
        RecordError if the reply lacks a group."""
        if len(records) < len(now):
            raise RecordError(f"draw: the reply has {len(records)} of {len(now)} groups")
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


def _numbered(attempts: Sequence[Trajectory | SlotResult]) -> list[SlotResult]:
    """Returns the results of attempts. Numbers them if they are several, all of slot 0."""
    slots = [int(each.slot) for each in attempts]
    results = [each if isinstance(each, SlotResult) else done(each) for each in attempts]
    if len(slots) < 2 or any(slots):
        return results
    played = [each.trajectory for each in results if each.trajectory is not None]
    return [done(replace(attempt, slot=slot)) for slot, attempt in enumerate(played)]


def _result(reply: Any, encoded: Sequence[Frame]) -> Any:
    """Makes a method's result from a reply and the groups that follow it."""
    match reply:
        case Amount():
            return reply.count
        case Ids():
            return reply.group_ids
        case Groups():
            return _groups(reply.now, encoded)
    return reply


@dataclass(frozen=True)
class Call(Generic[T]):
    """A client's request. `parse` makes the result from the reply. If the result is None, the
    client repeats the request. After `wait_s` seconds without a result, the client calls
    `gave_up`."""

    arguments: Record
    parse: Callable[[Any, Sequence[Frame]], T] = _result
    wait_s: float = 0.0
    gave_up: Callable[[], object] = lambda: None

    @property
    def operation(self) -> str:
        return NAMES[type(self.arguments)]

    def frames(self, rid: str) -> list[bytes]:
        return messages.request_frames(self.operation, rid, self.arguments)

    def read(self, frames: Sequence[Frame]) -> T:
        """Returns the operation's result, or raises the error that the reply contains."""
        return self.parse(*messages.read_reply(self.operation, frames))


class ClientMethod(Protocol[P, T_co]):
    """A method of both clients, as type checkers see it."""

    @overload
    def __get__(self, client: BlockingCalls, kind: Any = None) -> Callable[P, T_co]: ...
    @overload
    def __get__(
        self, client: AsyncCalls, kind: Any = None
    ) -> Callable[P, Coroutine[Any, Any, T_co]]: ...


def operation(build: Callable[Concatenate[Any, P], Call[T]]) -> ClientMethod[P, T]:
    """Makes a client method that builds a Call with `build` and sends the Call with `_ask`."""

    @wraps(build)
    def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return client._ask(build(client, *args, **kwargs))

    return cast("ClientMethod[P, T]", method)


def sends(request: Callable[P, Request[T]]) -> ClientMethod[P, T]:
    """Makes a method whose arguments are the fields of a request."""

    @wraps(request, updated=())
    def build(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        return Call(request(*args, **kwargs))

    return operation(build)


class Calls:
    """Methods for all operations of the buffer."""

    add_tasks = sends(operations.AddTasks)
    lease = sends(operations.AcquireLease)

    @operation
    def put(
        self,
        group_id: str,
        actor: str,
        results: Made | Sequence[Made],
        fingerprint: tuple[int, str] | None = None,
    ) -> Call[PutAck]:
        """Resolves slots of a leased group and adds reflections to it, all or none. All is on disk
        when the call returns. A repeated put changes nothing.

        `fingerprint`: policy version and hash of the weights that sampled the results. Raises
        LeaseLost if `actor` lost the group, Conflict if a slot already has a different result or a
        name another reflection.
        """
        several = (results,) if isinstance(results, Made) else results
        slots = [each for each in several if isinstance(each, SlotResult)]
        thoughts = [each for each in several if isinstance(each, ReflectionRecord)]
        return Call(
            operations.Put(
                group_id,
                actor,
                fingerprint,
                operations.encoded(slots),
                operations.encoded(thoughts),
            )
        )

    @operation
    def put_partial(self, group_id: str, actor: str, result: SlotResult) -> Call[int]:
        """Stores a slot's progress for the group's next actor. Returns 0 if the slot is resolved.
        Raises LeaseLost if `actor` does not hold the lease."""
        encoded = msgspec.Raw(codec.encode(result))
        return Call(operations.PutPartial(group_id, actor, encoded))

    renew = sends(operations.Renew)
    release = sends(operations.Release)

    @operation
    def draw(
        self,
        count: int,
        version: int,
        *,
        consumer: str = operations.LEARNER,
        wait_s: float = 0.0,
        explain: Callable[[str], object] = lambda reason: None,
    ) -> Call[Draw | None]:
        """Draws exactly `count` groups at learner version `version`.

        If there are fewer after `wait_s` seconds, calls `explain` with the reason and returns None.
        Raises Conflict if `version` exceeds the learner's version by more than 1.
        """
        reason = ""

        def parse(head: DrawHead, encoded: Sequence[Frame]) -> Draw | None:
            nonlocal reason
            reason = head.reason
            return None if head.row is None else Draw.read(head.row, head.now, encoded)

        request = operations.DrawGroups(count, version, consumer)
        return Call(request, parse, wait_s, lambda: explain(reason))

    release_draws = sends(operations.ReleaseDraws)
    commit = sends(operations.Commit)
    discard = sends(operations.Discard)

    @operation
    def insert(
        self,
        task: Task,
        attempts: Sequence[Trajectory | SlotResult],
        *,
        source: str,
        reflections: Sequence[ReflectionRecord] = (),
        kind: str = "",
        own: bool = False,
    ) -> Call[str]:
        """Inserts attempts at a task as one group, as material for replay. Returns the group's id.

        `source`: where they come from. Attempts that are all of slot 0 are numbered. `own`: they
        were sampled by policies of this run, and keep their versions; otherwise their versions
        become -1. `kind`: that of the group's plan. Raises RecordError if an attempt cannot belong
        to this run, Conflict if the task exists with another prompt or if the run's algorithm
        refuses the group.
        """
        results = [as_imported(each, source, own=own) for each in _numbered(attempts)]
        thoughts = [reflection_as_imported(each, own=own) for each in reflections]
        request = operations.Insert(
            task, operations.encoded(results), source, operations.encoded(thoughts), kind
        )
        return Call(request, lambda reply, _: str(reply.group_ids[0]))

    update_priorities = sends(operations.UpdatePriorities)
    set_version = sends(operations.SetVersion)
    query = sends(operations.QueryGroups)
    ledger = sends(operations.GetLedger)
    get = sends(operations.GetGroups)
    stats = sends(operations.GetStats)


class BlockingCalls(Calls):
    """Blocks in each method until the reply has arrived."""


class AsyncCalls(Calls):
    """Returns a coroutine from each method."""

"""Methods of both clients, one for each operation, in the order of a group's life.

Each builds a Call, which `operation` sends: BufferClient returns the result, AsyncBufferClient a
coroutine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from buffer.storage.rows import Status, TrainedAttempt
from buffer.storage.transaction import read_group
from buffer.wire import messages, operations
from buffer.wire.operations import BufferStats, DrawHead, Groups, Lease, PutAck, Wait
from buffer.wire.sockets import Frame
from r3l import codec
from r3l.errors import RecordError
from r3l.records import Group, GroupPlan, GroupState, Purpose, Recalled, Record, SlotResult, Task

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Draw:
    """A batch of complete groups that the learner drew at `version`; each of the `groups` is
    decoded when it is first read.

    `records` are the encoded groups as they were stored, then the encoded `recalled`.
    `recall_lost`: how many more were chosen, but have been evicted since. The others: see
    buffer.storage.rows.DrawRow.
    """

    draw_id: int
    groups: Sequence[Group] = field(repr=False)
    version: int
    probabilities: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    records: Sequence[bytes | memoryview] = field(default=(), repr=False)
    replaced: tuple[str, ...] = ()
    recalled: Sequence[Recalled] = field(default=(), repr=False)
    recall_lost: int = 0
    replayed: tuple[str, ...] = ()


class ReceivedGroups(Sequence[Group]):
    """The groups of a reply, each decoded when it is first read."""

    def __init__(self, now: Sequence[Status], encoded: Sequence[Frame]) -> None:
        if len(now) != len(encoded):
            raise RecordError(f"reply: has {len(encoded)} groups but announces {len(now)}")
        self._now, self._encoded = now, encoded
        self._groups: dict[int, Group] = {}

    def __len__(self) -> int:
        return len(self._encoded)

    @overload
    def __getitem__(self, at: int) -> Group: ...
    @overload
    def __getitem__(self, at: slice) -> list[Group]: ...
    def __getitem__(self, at: int | slice) -> Group | list[Group]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        index = range(len(self))[at]
        if index not in self._groups:
            self._groups[index] = read_group(self._encoded[index], self._now[index])
        return self._groups[index]


def _reply(reply: Any, groups: Sequence[Frame]) -> Any:
    return reply


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request and how to read its reply. `parse` gets the reply's record and the groups after it.
    `wait_s`: how many seconds the client asks again while the result is None; `gave_up` is called
    if it stays None."""

    operation: str
    arguments: Record
    parse: Callable[[Any, Sequence[Frame]], T] = _reply
    wait_s: float = 0.0
    gave_up: Callable[[], object] = lambda: None

    def frames(self, rid: str) -> list[bytes]:
        return messages.request_frames(self.operation, rid, self.arguments)

    def read(self, frames: Sequence[Frame]) -> T:
        """Return the operation's result. Raises the error if the service replied with an error."""
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
    """Make a method that passes the Call from `build` to the client's `_ask`."""

    @functools.wraps(build)
    def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return client._ask(build(client, *args, **kwargs))

    return cast("ClientMethod[P, T]", method)


class Calls:
    """Methods for all operations of the buffer."""

    @operation
    def add_tasks(
        self,
        tasks: Sequence[Task],
        *,
        purpose: Purpose = "train",
        tag: str = "",
        min_version: int = 0,
    ) -> Call[int]:
        """Register tasks; returns how many were new. Training tasks join the endless cycle,
        shuffled every epoch by the service's seed; evaluation tasks are played once under `tag`,
        before any training, by actors at `min_version` or newer."""
        arguments = operations.AddTasks(tuple(tasks), purpose, tag, min_version)
        return Call("add_tasks", arguments, _count)

    @operation
    def lease(
        self, actor: str, version: int, plan: GroupPlan, metrics: Mapping[str, float] | None = None
    ) -> Call[Lease | Wait]:
        """Ask for a group to explore with `plan`. An evaluation group has one base slot instead.

        `version`: the actor's policy version; `metrics`: shown in `stats`.
        """
        return Call("lease", operations.AcquireLease(actor, version, plan, dict(metrics or {})))

    @operation
    def put(
        self,
        group_id: str,
        actor: str,
        results: SlotResult | Sequence[SlotResult],
        fingerprint: tuple[int, str] | None = None,
    ) -> Call[PutAck]:
        """Resolve one or more slots of a leased group. All results are on disk when it returns,
        none if it raises an error. Sending them again changes nothing.

        `fingerprint`: policy version and hash of the weights that sampled them. Raises LeaseLost,
        Conflict.
        """
        several = (results,) if isinstance(results, SlotResult) else results
        encoded = tuple(msgspec.Raw(codec.encode(result)) for result in several)
        return Call("put", operations.Put(group_id, actor, fingerprint, encoded))

    @operation
    def put_partial(self, group_id: str, actor: str, result: SlotResult) -> Call[int]:
        """Keep the progress of an open slot for the next actor that leases the group; returns 0 if
        the slot is resolved. Raises LeaseLost if another actor now holds the group."""
        encoded = msgspec.Raw(codec.encode(result))
        return Call("put_partial", operations.PutPartial(group_id, actor, encoded), _count)

    @operation
    def renew(
        self, group_ids: Sequence[str], actor: str, metrics: Mapping[str, float] | None = None
    ) -> Call[tuple[str, ...]]:
        """Extend leases, as a heartbeat; returns the groups that this actor no longer holds."""
        arguments = operations.Renew(_id_tuple(group_ids), actor, dict(metrics or {}))
        return Call("renew", arguments, _ids)

    @operation
    def release(self, group_ids: Sequence[str], actor: str) -> Call[tuple[str, ...]]:
        """Give leases back, keeping accepted results; returns the groups that this actor held."""
        return Call("release", operations.Release(_id_tuple(group_ids), actor), _ids)

    @operation
    def draw(
        self,
        count: int,
        version: int,
        *,
        consumer: str = operations.LEARNER,
        wait_s: float = 0.0,
        explain: Callable[[str], object] | None = None,
    ) -> Call[Draw | None]:
        """Draw exactly `count` complete groups no older than η at learner version `version`.

        Returns None if there are too few after `wait_s` seconds, and calls `explain` with the
        reason. Raises Conflict if `version` is more than one step beyond the learner's.
        """

        reason = ""

        def gave_up() -> None:
            if explain is not None:
                explain(reason)

        def parse(head: DrawHead, encoded: Sequence[Frame]) -> Draw | None:
            nonlocal reason
            if not head.draw_id:
                reason = head.reason
                return None
            groups = len(head.now)
            recalled = [codec.decode(Recalled, data) for data in encoded[groups:]]
            return Draw(
                head.draw_id,
                ReceivedGroups(head.now, encoded[:groups]),
                head.version,
                head.probabilities,
                head.weights,
                encoded,
                head.replaced,
                recalled,
                head.recalled - len(recalled),
                head.replayed,
            )

        return Call("draw", operations.DrawGroups(count, version, consumer), parse, wait_s, gave_up)

    @operation
    def release_draws(self, consumer: str = operations.LEARNER) -> Call[int]:
        """Make the consumer's uncommitted groups drawable again. A restarted learner does this
        first."""
        return Call("release_draws", operations.ReleaseDraws(consumer), _count)

    @operation
    def commit(
        self, draw_id: int, step: int, version: int, attempts: Sequence[TrainedAttempt] = ()
    ) -> Call[None]:
        """Enter the groups of a draw into the ledger under `step`, which made `version`.
        `attempts`: how the step trained on each attempt; the viewer shows it."""
        return Call(
            "commit", operations.Commit(draw_id, step, version, tuple(attempts)), lambda *_: None
        )

    @operation
    def discard(self, draw_id: int, cause: str) -> Call[int]:
        """Drop a draw's groups because they cannot be trained on; returns how many."""
        return Call("discard", operations.Discard(draw_id, cause), _count)

    @operation
    def set_version(self, version: int) -> Call[int]:
        """Set the version that a learner starts from. Steps that made later versions leave the
        ledger and their groups become drawable again. Returns the number of these groups."""
        return Call("set_version", operations.SetVersion(version), _count)

    @operation
    def query(
        self,
        purpose: Purpose | None = None,
        tag: str | None = None,
        state: GroupState | None = None,
        limit: int = 1000,
    ) -> Call[list[Group]]:
        """Return the newest `limit` groups of a purpose, tag and state, newest first."""
        return Call("query", operations.QueryGroups(purpose, tag, state, limit), _groups)

    @operation
    def ledger(self, step: int) -> Call[list[str]]:
        """Return the ids of the groups that a step was trained on. Raises NotFound if it has
        none."""
        return Call("ledger", operations.GetLedger(step), lambda reply, _: list(reply.group_ids))

    @operation
    def get(self, group_ids: Sequence[str]) -> Call[list[Group]]:
        """Return groups by id, in this order. Unfinished groups have what was accepted so far."""
        return Call("get", operations.GetGroups(_id_tuple(group_ids)), _groups)

    @operation
    def stats(self) -> Call[BufferStats]:
        return Call("stats", operations.GetStats())


class BlockingCalls(Calls):
    """Methods that block until the reply has arrived."""

    def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError


class AsyncCalls(Calls):
    """Methods that return coroutines."""

    async def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError


def _id_tuple(group_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the ids as a tuple. A single string is one id, not a sequence of characters."""
    return (group_ids,) if isinstance(group_ids, str) else tuple(group_ids)


def _count(reply: Any, groups: Sequence[Frame]) -> int:
    return int(reply.count)


def _ids(reply: Any, groups: Sequence[Frame]) -> tuple[str, ...]:
    return tuple(reply.group_ids)


def _groups(reply: Groups, encoded: Sequence[Frame]) -> list[Group]:
    return list(ReceivedGroups(reply.now, encoded))

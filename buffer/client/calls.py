"""What a client may ask: a function for each operation, in the order of a group's life.

Each function builds a Call: the request, and how to read the reply. BufferClient has them as
methods of BlockingCalls, AsyncBufferClient as those of AsyncCalls; they differ only in how they
wait for the reply.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import msgspec

from buffer.storage.rows import Evicted, Status, TrainedAttempt
from buffer.storage.transaction import read_group
from buffer.wire import messages, operations
from buffer.wire.frames import Frame
from buffer.wire.operations import BufferStats, DrawHead, Groups, Lease, PutAck, Wait
from r3l import codec
from r3l.errors import RecordError
from r3l.records import (
    Group,
    GroupPlan,
    GroupState,
    Purpose,
    Recalled,
    Record,
    Role,
    SlotResult,
    Task,
)
from r3l.settings.buffer import RetentionConfig
from r3l.views import attempt_frame

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Draw:
    """A batch of complete groups, drawn by the learner while at `version`.

    `groups` are decoded and checked when they are first looked at, each by itself; `records` are
    the same as they were stored, encoded, then the `recalled`.
    `probabilities`, `weights`: of each group, as in buffer.sampling.samplers.Pick; 1 for samplers
    that leave nothing to chance. `replaced`: ids of the groups that expired without contrast since
    the draw before, the newest of them if they are many. `recalled`: stored attempts that the
    algorithm recalls into these groups; `recall_lost`: how many more there were, whose groups were
    evicted since. `replayed`: ids of the groups that were trained before.
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


def _as_it_is(reply: Any, groups: Sequence[Frame]) -> Any:
    return reply


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request to an operation and how to read the reply: a record and the groups behind it.

    `hold_s`: seconds the reply may be held back.
    """

    operation: str
    arguments: Record
    parse: Callable[[Any, Sequence[Frame]], T] = _as_it_is
    hold_s: float = 0.0

    def frames(self, rid: str, waited_s: float) -> list[bytes]:
        """The request's frames when it has waited `waited_s` seconds already."""
        hold_s = min(max(0.0, self.hold_s - waited_s), messages.HOLD_LIMIT_S)
        return messages.request_frames(self.operation, rid, self.arguments, hold_s)

    def read(self, frames: Sequence[Frame]) -> T:
        """What the operation returns; raises the error that the service replied with."""
        return self.parse(*messages.read_reply(self.operation, frames))


def add_tasks(
    tasks: Sequence[Task], *, purpose: Purpose = "train", tag: str = "", min_version: int = 0
) -> Call[int]:
    """Register tasks; returns how many were new. Known task ids change nothing.

    train: they join the endless cycle, shuffled every epoch by the service's seed. eval: each
    is played once, before any training, by actors at `min_version` or newer, under `tag`.
    """
    arguments = operations.AddTasks(tuple(tasks), purpose, tag, min_version)
    return Call("add_tasks", arguments, _amount)


def lease(
    actor: str, version: int, plan: GroupPlan, metrics: Mapping[str, float] | None = None
) -> Call[Lease | Wait]:
    """Ask for a group to explore with `plan`; an evaluation has one base slot instead.

    `version`: the actor's policy version; `metrics`: shown in `stats`.
    """
    return Call("lease", operations.AcquireLease(actor, version, plan, dict(metrics or {})))


def put(
    group_id: str,
    actor: str,
    results: SlotResult | Sequence[SlotResult],
    fingerprint: tuple[int, str] | None = None,
) -> Call[PutAck]:
    """Resolve one slot of a leased group, or several; on disk when it returns, all of them or
    none, however often it is sent.

    `fingerprint`: policy version and hash of the weights that sampled them. Raises LeaseLost if
    another actor holds the group now, Conflict if a slot was resolved with another result.
    """
    several = (results,) if isinstance(results, SlotResult) else results
    encoded = tuple(msgspec.Raw(codec.encode(result)) for result in several)
    return Call("put", operations.Put(group_id, actor, fingerprint, encoded))


def resolve(group_id: str, actor: str, role: Role, slot: int, *, cause: str = "") -> Call[PutAck]:
    """Resolve a slot that has nothing to show: failed with `cause`, not triggered without one.

    Otherwise as `put`.
    """
    return Call("resolve", operations.Resolve(group_id, actor, role, slot, cause))


def renew(
    group_ids: Sequence[str], actor: str, metrics: Mapping[str, float] | None = None
) -> Call[tuple[str, ...]]:
    """Heartbeat: extend leases; returns the groups that are no longer this actor's."""
    arguments = operations.Renew(_each(group_ids), actor, dict(metrics or {}))
    return Call("renew", arguments, _ids)


def release(group_ids: Sequence[str], actor: str) -> Call[tuple[str, ...]]:
    """Give leases back at once, accepted results kept; returns those that were this actor's."""
    return Call("release", operations.Release(_each(group_ids), actor), _ids)


def draw(
    count: int,
    version: int,
    *,
    consumer: str = operations.LEARNER,
    wait_s: float = 0.0,
    explain: Callable[[str], object] | None = None,
) -> Call[Draw | None]:
    """Draw exactly `count` complete groups no older than η at learner version `version`.

    None if there are not enough after `wait_s` seconds; `explain` is then called with what there
    is too little of and who is waited for. `version` is at most one step beyond what
    was committed or given to `set_version`; Conflict otherwise.
    """

    def parse(head: DrawHead, encoded: Sequence[Frame]) -> Draw | None:
        if not head.draw_id:
            if explain is not None:
                explain(head.reason)
            return None
        count = len(head.now)
        recalled = [codec.decode(Recalled, data) for data in encoded[count:]]
        return Draw(
            head.draw_id,
            ReceivedGroups(head.now, encoded[:count]),
            head.version,
            head.probabilities,
            head.weights,
            encoded,
            head.replaced,
            recalled,
            head.recalled - len(recalled),
            head.replayed,
        )

    return Call("draw", operations.DrawGroups(count, version, consumer), parse, hold_s=wait_s)


def release_draws(consumer: str = operations.LEARNER) -> Call[int]:
    """Make drawn and not committed groups drawable again; a restarted learner does this first."""
    return Call("release_draws", operations.ReleaseDraws(consumer), _amount)


def commit(
    draw_id: int, step: int, version: int, attempts: Sequence[TrainedAttempt] = ()
) -> Call[None]:
    """Enter the groups of a draw into the ledger under `step`, which made `version`. `attempts`:
    how the step trained on each, which the viewer shows."""
    return Call("commit", operations.Commit(draw_id, step, version, tuple(attempts)), _nothing)


def discard(draw_id: int, cause: str) -> Call[int]:
    """Drop the groups of a draw that cannot be trained on; returns how many."""
    return Call("discard", operations.Discard(draw_id, cause), _amount)


def limit_staleness(max_staleness: int) -> Call[int]:
    """Set the staleness limit, at most the configured max_staleness; returns the one that holds."""
    return Call("limit_staleness", operations.LimitStaleness(max_staleness), _amount)


def set_version(version: int) -> Call[int]:
    """The version a learner starts from. Steps that made later versions leave the ledger and
    their groups become drawable again; returns how many."""
    return Call("set_version", operations.SetVersion(version), _amount)


def history(task_id: str, count: int, *, newest_first: bool = True) -> Call[list[Group]]:
    """The last `count` groups of a training task that were completed."""
    return Call("history", operations.GetHistory(task_id, count, newest_first), _groups)


def query(
    purpose: Purpose | None = None,
    tag: str | None = None,
    state: GroupState | None = None,
    limit: int = 1000,
) -> Call[list[Group]]:
    """The newest `limit` groups of a purpose, tag and state, newest first."""
    return Call("query", operations.QueryGroups(purpose, tag, state, limit), _groups)


def frame(
    purpose: Purpose | None = None,
    tag: str | None = None,
    state: GroupState | None = None,
    limit: int = 1000,
    *,
    kind: attempt_frame.Kind = "pandas",
) -> Call[Any]:
    """The attempts of these groups, chosen as in `query`, as a pandas DataFrame, or a pyarrow Table
    for the kind "arrow": one row for each resolved slot, the columns of
    r3l.views.attempt_frame.AttemptRow. Groups are in the order they were made.

    Raises UserError if the library is not installed.
    """
    attempt_frame.library(kind)

    def parse(reply: Groups, encoded: Sequence[Frame]) -> Any:
        found = zip(ReceivedGroups(reply.now, encoded), reply.now, strict=True)
        ordered = sorted(found, key=lambda pair: pair[0].group_id)
        return attempt_frame.made(
            kind, (row for group, now in ordered for row in attempt_frame.rows(group, now.steps))
        )

    return Call("query", operations.QueryGroups(purpose, tag, state, limit), parse)


def ledger(step: int) -> Call[list[str]]:
    """Ids of the groups a step was trained on; raises NotFound for a step that was not."""
    return Call("ledger", operations.GetLedger(step), lambda reply, _: list(reply.group_ids))


def get(group_ids: Sequence[str]) -> Call[list[Group]]:
    """Groups by id, in this order; unfinished ones with what was accepted so far."""
    return Call("get", operations.GetGroups(_each(group_ids)), _groups)


def evict(limits: RetentionConfig) -> Call[Evicted]:
    """Evict closed groups, oldest first, until `limits` hold.

    A call evicts some of them and says if there are `more`, so that nobody waits for long.
    """
    return Call("evict", operations.Evict(limits.model_dump()))


def would_evict(limits: RetentionConfig) -> Call[Evicted]:
    """What `evict` would remove with these limits, all of it."""
    return Call("would_evict", operations.Evict(limits.model_dump()))


def stats() -> Call[BufferStats]:
    """The service's metrics."""
    return Call("stats", operations.GetStats())


class ReceivedGroups(Sequence[Group]):
    """Groups of a reply, each decoded when it is first looked at."""

    def __init__(self, now: Sequence[Status], encoded: Sequence[Frame]) -> None:
        if len(now) != len(encoded):
            raise RecordError(f"{len(encoded)} groups in a reply that announces {len(now)}")
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


def _each(group_ids: Sequence[str]) -> tuple[str, ...]:
    """The ids; one alone is a sequence of one, not of its letters."""
    return (group_ids,) if isinstance(group_ids, str) else tuple(group_ids)


def _nothing(reply: Any, groups: Sequence[Frame]) -> None:
    return None


def _amount(reply: Any, groups: Sequence[Frame]) -> int:
    return int(reply.count)


def _ids(reply: Any, groups: Sequence[Frame]) -> tuple[str, ...]:
    return tuple(reply.group_ids)


def _groups(reply: Groups, encoded: Sequence[Frame]) -> list[Group]:
    return list(ReceivedGroups(reply.now, encoded))


# ── as methods ──────────────────────────────────────────────────────────────────────────────


def _blocking(build: Callable[P, Call[T]]) -> Callable[Concatenate[BlockingCalls, P], T]:
    @functools.wraps(build)
    def method(self: BlockingCalls, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._ask(build(*args, **kwargs))

    return _with_self(method)


def _awaited(
    build: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncCalls, P], Coroutine[Any, Any, T]]:
    @functools.wraps(build)
    async def method(self: AsyncCalls, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._ask(build(*args, **kwargs))

    return _with_self(method)


def _with_self(method: F) -> F:
    """Give `help()` the signature of a method."""
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    known = inspect.signature(method)
    signature = known.replace(parameters=[itself, *known.parameters.values()])
    setattr(method, "__signature__", signature)  # noqa: B010 - functions do not declare it
    return method


class BlockingCalls:
    """The operations as methods that return when the reply has come."""

    def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError

    add_tasks = _blocking(add_tasks)
    lease = _blocking(lease)
    put = _blocking(put)
    resolve = _blocking(resolve)
    renew = _blocking(renew)
    release = _blocking(release)
    draw = _blocking(draw)
    release_draws = _blocking(release_draws)
    commit = _blocking(commit)
    discard = _blocking(discard)
    limit_staleness = _blocking(limit_staleness)
    set_version = _blocking(set_version)
    history = _blocking(history)
    query = _blocking(query)
    frame = _blocking(frame)
    ledger = _blocking(ledger)
    get = _blocking(get)
    evict = _blocking(evict)
    would_evict = _blocking(would_evict)
    stats = _blocking(stats)


class AsyncCalls:
    """The operations as coroutines."""

    async def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError

    add_tasks = _awaited(add_tasks)
    lease = _awaited(lease)
    put = _awaited(put)
    resolve = _awaited(resolve)
    renew = _awaited(renew)
    release = _awaited(release)
    draw = _awaited(draw)
    release_draws = _awaited(release_draws)
    commit = _awaited(commit)
    discard = _awaited(discard)
    limit_staleness = _awaited(limit_staleness)
    set_version = _awaited(set_version)
    history = _awaited(history)
    query = _awaited(query)
    frame = _awaited(frame)
    ledger = _awaited(ledger)
    get = _awaited(get)
    evict = _awaited(evict)
    would_evict = _awaited(would_evict)
    stats = _awaited(stats)

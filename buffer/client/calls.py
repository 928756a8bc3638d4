"""The verbs of a client, in the order of a group's life: what is sent, what comes back.

Each function builds a Call; BufferClient and AsyncBufferClient differ only in how they wait
for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from buffer.storage.rows import Evicted
from buffer.storage.transaction import read_group
from buffer.wire import messages
from buffer.wire.frames import Frame, split_records
from buffer.wire.messages import BufferStats, Draw, DrawHead, Groups, Lease, PutAck, Wait
from r3l import codec
from r3l.config import RetentionConfig
from r3l.errors import RecordError, from_wire
from r3l.records import Group, GroupPlan, GroupState, Purpose, Role, SlotResult, Task

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request to be sent and how to read its answer.

    `records`: encoded, back to back; `hold_s`: seconds the answer may be held back.
    """

    op: str
    arguments: Any
    parse: Callable[[Any, Sequence[Frame]], T]
    records: bytes = b""
    hold_s: float = 0.0

    def frames(self, rid: str, waited_s: float) -> list[bytes]:
        """The request's frames when it has waited `waited_s` seconds already."""
        hold_s = min(max(0.0, self.hold_s - waited_s), messages.HOLD_LIMIT_S)
        return messages.request_frames(self.op, rid, self.arguments, self.records, hold_s)


def add_tasks(
    tasks: Sequence[Task], *, purpose: Purpose = "train", tag: str = "", min_version: int = 0
) -> Call[int]:
    """Register tasks; returns how many were new. Known task ids change nothing.

    train: they join the endless cycle, shuffled every epoch by the service's seed. eval: each
    is played once, before any training, by actors at `min_version` or newer, under `tag`.
    """
    arguments = messages.AddTasks(tuple(tasks), purpose, tag, min_version)
    return Call("add_tasks", arguments, _amount)


def lease(
    actor: str, version: int, plan: GroupPlan, metrics: Mapping[str, float] | None = None
) -> Call[Lease | Wait]:
    """Ask for a group to explore with `plan`; an evaluation has one base slot instead.

    `version`: the actor's policy version; `metrics`: figures shown in `stats`.
    """
    return Call("lease", messages.AskLease(actor, version, plan, dict(metrics or {})), _result)


def put(
    group_id: str,
    actor: str,
    results: SlotResult | Sequence[SlotResult],
    fingerprint: tuple[int, str] | None = None,
) -> Call[PutAck]:
    """Resolve one slot of a leased group, or several; on disk when it returns, all of them or
    none, however often it is sent.

    `fingerprint`: policy version and hash of the weights that sampled them. Raises LeaseLost if
    the group is another actor's by now, Conflict if a slot was resolved with another result.
    """
    several = (results,) if isinstance(results, SlotResult) else results
    encoded = [codec.encode(result) for result in several]
    arguments = messages.Put(group_id, actor, fingerprint, tuple(map(len, encoded)))
    return Call("put", arguments, _result, b"".join(encoded))


def resolve(group_id: str, actor: str, role: Role, slot: int, *, cause: str = "") -> Call[PutAck]:
    """Resolve a slot that has nothing to show: failed with `cause`, not triggered without one.

    Otherwise as `put`.
    """
    return Call("resolve", messages.Resolve(group_id, actor, role, slot, cause), _result)


def renew(
    group_ids: Sequence[str], actor: str, metrics: Mapping[str, float] | None = None
) -> Call[tuple[str, ...]]:
    """Heartbeat: extend leases; returns the groups that are no longer this actor's."""
    arguments = messages.Renew(_each(group_ids), actor, dict(metrics or {}))
    return Call("renew", arguments, _ids)


def release(group_ids: Sequence[str], actor: str) -> Call[tuple[str, ...]]:
    """Give leases back at once, accepted results kept; returns those that were this actor's."""
    return Call("release", messages.Release(_each(group_ids), actor), _ids)


def draw(
    count: int,
    version: int,
    *,
    consumer: str = "learner",
    wait_s: float = 0.0,
    explain: Callable[[str], object] | None = None,
) -> Call[Draw | None]:
    """Draw exactly `count` complete groups no older than η at learner version `version`.

    None if there are not enough after `wait_s` seconds; `explain` is then called with what there
    is too little of and who is waited for. `version` is at most one step beyond what
    was committed or given to `set_version`; Conflict otherwise.
    """

    def parse(head: DrawHead, frames: Sequence[Frame]) -> Draw | None:
        if explain is not None and not head.draw_id:
            explain(head.reason)
        return _draw(head, frames)

    return Call("draw", messages.AskDraw(count, version, consumer), parse, hold_s=wait_s)


def release_draws(consumer: str = "learner") -> Call[int]:
    """Make drawn and not committed groups drawable again; a restarted learner does this first."""
    return Call("release_draws", messages.ReleaseDraws(consumer), _amount)


def commit(draw_id: int, step: int, version: int) -> Call[None]:
    """Enter the groups of a draw into the ledger under `step`, which made `version`."""
    return Call("commit", messages.Commit(draw_id, step, version), _nothing)


def discard(draw_id: int, cause: str) -> Call[int]:
    """Drop the groups of a draw that cannot be trained on; returns how many."""
    return Call("discard", messages.Discard(draw_id, cause), _amount)


def limit_staleness(max_staleness: int) -> Call[int]:
    """Lower max_staleness (to the configured one at most); returns the one that holds."""
    return Call("limit_staleness", messages.LimitStaleness(max_staleness), _amount)


def set_version(version: int) -> Call[int]:
    """The version a learner starts from. Steps that made later versions leave the ledger and
    their groups become drawable again; returns how many."""
    return Call("set_version", messages.SetVersion(version), _amount)


def history(task_id: str, count: int, *, newest_first: bool = True) -> Call[list[Group]]:
    """The last `count` groups of a training task that were completed."""
    return Call("history", messages.AskHistory(task_id, count, newest_first), _groups)


def query(
    purpose: Purpose | None = None,
    tag: str | None = None,
    state: GroupState | None = None,
    limit: int = 1000,
) -> Call[list[Group]]:
    """The newest `limit` groups of a purpose, tag and state, newest first."""
    return Call("query", messages.AskQuery(purpose, tag, state, limit), _groups)


def ledger(step: int) -> Call[list[str]]:
    """Ids of the groups a step was trained on; raises NotFound for a step that was not."""
    return Call("ledger", messages.AskLedger(step), lambda r, p: list(_ids(r, p)))


def get(group_ids: Sequence[str]) -> Call[list[Group]]:
    """Groups by id, in this order; unfinished ones with what was accepted so far."""
    return Call("get", messages.AskGroups(_each(group_ids)), _groups)


def evict(limits: RetentionConfig, *, dry_run: bool = False) -> Call[Evicted]:
    """Evict closed groups, oldest first, until `limits` hold; `dry_run`: only say which.

    A call evicts some of them and says if there are `more`, so that nobody waits for long.
    """
    return Call(
        "would_evict" if dry_run else "evict", messages.AskEvict(limits.model_dump()), _result
    )


def stats() -> Call[BufferStats]:
    """The service's figures."""
    return Call("stats", messages.AskStats(), _result)


def answer_id(frames: Sequence[Frame]) -> str:
    """The request an answer belongs to; "" for a message that cannot be read at all."""
    return str(codec.unpack(frames[0]).get("rid", ""))


def read_answer(call: Call[T], frames: Sequence[Frame]) -> T:
    """What the verb returns; raises the error the service answered with."""
    header = codec.unpack(frames[0])
    messages.check_header(header)
    if header.get("ok") is not True:
        raise from_wire(header)
    kind = messages.RESULTS.get(str(header.get("kind")))
    if kind is None or len(frames) < 2:
        raise RecordError(f"an answer of unknown kind {header.get('kind')!r:.40}")
    return call.parse(codec.decode(kind, frames[1]), frames[2:])


def _each(group_ids: Sequence[str]) -> tuple[str, ...]:
    """The ids; one alone is a sequence of one, not of its letters."""
    return (group_ids,) if isinstance(group_ids, str) else tuple(group_ids)


def _result(result: Any, frames: Sequence[Frame]) -> Any:
    return result


def _nothing(result: Any, frames: Sequence[Frame]) -> None:
    return None


def _amount(result: Any, frames: Sequence[Frame]) -> int:
    return int(result.count)


def _ids(result: Any, frames: Sequence[Frame]) -> tuple[str, ...]:
    return tuple(result.group_ids)


def _groups(result: Groups, frames: Sequence[Frame]) -> list[Group]:
    return list(_Arrived(result, frames))


class _Arrived(Sequence[Group]):
    """Groups of an answer, each decoded when it is first looked at."""

    def __init__(self, result: Groups | DrawHead, frames: Sequence[Frame]) -> None:
        self.records = tuple(split_records(frames, result.sizes))
        self._encoded = list(zip(result.now, self.records, strict=True))
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
            now, record = self._encoded[index]
            self._groups[index] = read_group(record, now)
        return self._groups[index]


def _draw(result: DrawHead, frames: Sequence[Frame]) -> Draw | None:
    if not result.draw_id:
        return None
    groups = _Arrived(result, frames)
    return Draw(
        result.draw_id,
        groups,
        result.version,
        result.probabilities,
        result.weights,
        groups.records,
    )

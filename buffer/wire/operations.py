"""The buffer's operations: their table, requests and replies.

CONTRIBUTING.md lists what a new operation needs. The records of groups follow their reply, one
frame each (buffer.wire.messages). Raise `PROTOCOL` of buffer.wire.messages when a request or reply
changes, not for a new operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from buffer.storage.rows import Status, TrainedAttempt
from r3l.records import GroupPlan, GroupState, Integer, Purpose, Record, SlotResult, Task

GROUPS_LIMIT = 4096  # groups in one reply
SLOTS_LIMIT = 1024  # slots of a group
NAME_LIMIT = 200  # characters of an actor or consumer
LEARNER = "learner"  # the consumer whose drawn groups count for admission


# ── requests ────────────────────────────────────────────────────────────────────────────────


class AddTasks(Record):
    """Register tasks under a purpose and tag."""

    tasks: tuple[Task, ...]
    purpose: Purpose
    tag: str
    min_version: Integer


class AcquireLease(Record):
    """Ask for a group to explore."""

    actor: str
    version: Integer
    plan: GroupPlan
    metrics: dict[str, float]


class Put(Record):
    """Resolve slots of a group. `results`: encoded slot results, which are checked one by one.

    `fingerprint`: policy version and hash of the weights that sampled them.
    """

    group_id: str
    actor: str
    fingerprint: tuple[Integer, str] | None
    results: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(min_length=1, max_length=SLOTS_LIMIT)]


class PutPartial(Record):
    """Keep the progress of an open slot. `result`: its encoded result so far
    (r3l.rollout.partial)."""

    group_id: str
    actor: str
    result: msgspec.Raw


class Renew(Record):
    """Extend leases."""

    group_ids: tuple[str, ...]
    actor: str
    metrics: dict[str, float]


class Release(Record):
    """Give leases back."""

    group_ids: tuple[str, ...]
    actor: str


class DrawGroups(Record):
    """Ask for a batch."""

    count: Integer
    version: Integer
    consumer: str


class ReleaseDraws(Record):
    """Make a consumer's uncommitted groups drawable again."""

    consumer: str


class Commit(Record):
    """Enter a trained batch into the ledger. `attempts`: how the step trained on each attempt."""

    draw_id: Integer
    step: Integer
    version: Integer
    attempts: tuple[TrainedAttempt, ...] = ()


class Discard(Record):
    """Drop a batch that cannot be trained on."""

    draw_id: Integer
    cause: str


class SetVersion(Record):
    """Set the version that the learner starts from."""

    version: Integer


class QueryGroups(Record):
    """Find groups by purpose, tag and state."""

    purpose: Purpose | None
    tag: str | None
    state: GroupState | None
    limit: Integer


class GetLedger(Record):
    """Find the groups that a step was trained on."""

    step: Integer


class GetGroups(Record):
    """Get groups by id."""

    group_ids: tuple[str, ...]


class GetStats(Record):
    """Read the service's metrics."""


# ── replies ─────────────────────────────────────────────────────────────────────────────────


class Lease(Record):
    """A group to explore. `accepted`: results of an earlier holder, and `partial` its progress in
    open slots. `deadline_s`: seconds until another actor may take it, unless the lease is
    renewed."""

    group_id: str
    task: Task
    purpose: Purpose
    tag: str
    plan: GroupPlan
    accepted: tuple[SlotResult, ...]
    deadline_s: float
    partial: tuple[SlotResult, ...] = ()


class Wait(Record):
    """There is no group now. `reason`: why; `retry_s`: seconds until the actor should try again."""

    reason: str
    retry_s: float


class PutAck(Record):
    """The results are on disk. `new`: how many this request added, 0 if it was sent again.
    `complete`: all slots of the group are resolved."""

    new: int
    complete: bool


class Ids(Record):
    """Group ids."""

    group_ids: tuple[str, ...] = ()


class Groups(Record):
    """Announces the groups that follow. `now`: their current states, in the same order."""

    now: tuple[Status, ...] = ()


class Amount(Record):
    """A count. What it counts depends on the operation."""

    count: int = 0


class DrawHead(Record):
    """Announces the batch that follows, or with `draw_id` 0 the `reason` why there is none.
    `recalled`: how many stored attempts the draw recalled; those not evicted since follow the
    groups, as Recalled. The others: see DrawRow."""

    draw_id: int = 0
    version: int = 0
    probabilities: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    now: tuple[Status, ...] = ()
    reason: str = ""
    replaced: tuple[str, ...] = ()
    recalled: int = 0
    replayed: tuple[str, ...] = ()


class BufferStats(Record):
    """Metrics of the service.

    Groups and results now:
    - `train`, `eval`: groups in each state; `eval_progress`: (finished, all) for each tag
    - `drawn_by`: groups of each consumer in draws that are neither committed nor released

    Counted since the store was created:
    - `made`: groups, the sum of `train`, `eval` and `evicted`
    - `drops`: expired groups for each cause
    - `slot_drops`: failed slots, and attempts lost with their group, keyed by "role/cause"
    - `partial_dropped`: partial attempts that no actor can continue, keyed by cause
    - `rewound`: groups of steps that a learner rewound; `rewound_evicted` of them had been evicted
      and still count as `trained`

    Since the service started:
    - `actors`: latest metrics of each actor, with `seen_s`, seconds since its last request
    - `refused`: error replies, keyed by error or by symptom of a sick engine
      (r3l.rollout.engine_symptoms)
    - `undelivered`: replies whose client was gone or too slow
    """

    train: dict[str, int] = msgspec.field(default_factory=dict)
    eval: dict[str, int] = msgspec.field(default_factory=dict)
    drops: dict[str, int] = msgspec.field(default_factory=dict)
    slot_drops: dict[str, int] = msgspec.field(default_factory=dict)
    partial_dropped: dict[str, int] = msgspec.field(default_factory=dict)
    puts: int = 0
    draws: int = 0
    drawn_groups: int = 0
    trained: int = 0
    leases: int = 0
    leases_expired: int = 0
    draws_expired: int = 0
    fingerprint_conflicts: int = 0
    rewound: int = 0
    rewound_evicted: int = 0
    made: int = 0
    evicted: int = 0
    learner_version: int = 0
    max_staleness: int = 0
    tasks: int = 0
    disk_bytes: int = 0
    free_bytes: int = 0
    eval_progress: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    actors: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    undelivered: int = 0
    drawn_by: dict[str, int] = msgspec.field(default_factory=dict)


# ── the table ───────────────────────────────────────────────────────────────────────────────

Thread = Literal["writer", "reader"]


@dataclass(frozen=True)
class Operation:
    """A row in the table of operations: `replies`, the kinds of a successful reply; `thread` of the
    service (the writer changes the store, the reader reads a snapshot); `keeps_reply`, see
    buffer.server.idempotency; `learner`, needs a learner's key if the service has keys."""

    name: str
    request: type[Record]
    replies: tuple[type[Record], ...]
    thread: Thread
    keeps_reply: bool = False
    learner: bool = False


_ROWS = (
    Operation("add_tasks", AddTasks, (Amount,), "writer", keeps_reply=True, learner=True),
    Operation("lease", AcquireLease, (Lease, Wait), "writer"),
    Operation("put", Put, (PutAck,), "writer"),
    Operation("put_partial", PutPartial, (Amount,), "writer"),
    Operation("renew", Renew, (Ids,), "writer"),
    Operation("release", Release, (Ids,), "writer"),
    Operation("draw", DrawGroups, (DrawHead,), "writer", learner=True),
    Operation("release_draws", ReleaseDraws, (Amount,), "writer", keeps_reply=True, learner=True),
    Operation("commit", Commit, (Amount,), "writer", learner=True),
    Operation("discard", Discard, (Amount,), "writer", learner=True),
    Operation("set_version", SetVersion, (Amount,), "writer", keeps_reply=True, learner=True),
    Operation("query", QueryGroups, (Groups,), "reader"),
    Operation("ledger", GetLedger, (Ids,), "reader"),
    Operation("get", GetGroups, (Groups,), "reader"),
    Operation("stats", GetStats, (BufferStats,), "writer"),
)
OPERATIONS = {row.name: row for row in _ROWS}

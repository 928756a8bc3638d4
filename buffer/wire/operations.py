"""The buffer's operations: their table, requests and replies.

CONTRIBUTING.md lists what a new operation needs. If an operation returns groups or results, they
follow its reply (buffer.wire.parts). A long answer comes in parts: the client asks for the next one
once it has the one before. Increase `PROTOCOL` in buffer.wire.messages when a
request or a reply changes, not for a new operation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from buffer.storage.stored_rows import DrawRow, Status, TrainedAttempt
from r3l import codec
from r3l.records import (
    Group,
    GroupPlan,
    GroupState,
    Integer,
    Purpose,
    Recalled,
    Record,
    ReflectionRecord,
    SlotResult,
    Task,
)

GROUPS_LIMIT = 4096  # groups of one answer
SLOTS_LIMIT = 1024  # slots of a group
REFLECTIONS_LIMIT = 4096  # reflections of a group
HANDED_LIMIT = 64  # stored attempts of a plan
HANDED_BYTES = 4 << 20  # of them
NAME_LIMIT = 200  # characters of an actor or consumer
LEARNER = "learner"  # the consumer whose drawn groups count for admission


# ── requests ────────────────────────────────────────────────────────────────────────────────

T = TypeVar("T")
Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Request(Record, Generic[T]):
    """The base of all requests. T: the type that a client's method returns for the request."""


class AddTasks(Request[int]):
    """Registers tasks. Returns how many were new.

    Training tasks are played again and again, in the order of the run's task sampler. An evaluation
    task is played once, under `tag`, by an actor at `min_version` or newer.
    """

    tasks: Sequence[Task]
    purpose: Purpose = "train"
    tag: str = ""
    min_version: Integer = 0


class AcquireLease(Request["Lease | Wait"]):
    """Asks for a group to explore. `plan`: the plan of a new training group; by default, the run's
    algorithm makes it. An evaluation group has one slot. `metrics`: numbers for `stats`. `wait_s`:
    how many seconds the service may keep the request until there is work."""

    actor: str
    version: Integer
    plan: GroupPlan | None = None
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0


class Put(Request["PutAck"]):
    """Resolves slots of a leased group, and adds reflections to it. `results`: encoded SlotResults;
    `reflections`: encoded ReflectionRecords; there must be at least one record. `fingerprint`:
    version and hash of the sampling weights."""

    group_id: str
    actor: str
    fingerprint: tuple[Integer, str] | None
    results: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=SLOTS_LIMIT)] = ()
    reflections: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=SLOTS_LIMIT)] = ()


class PutPartial(Request[int]):
    """Stores the progress of an open slot: its result so far, with a trajectory
    (r3l.rollout.partial). `digest`: the digest of the encoded result. `data`: the encoded result;
    with `since`, only what is new (buffer.wire.increments) compared with the stored result of that
    digest. `serial`: grows with each message of a lease's holder, so that late copies are
    recognised; 0: not counted."""

    group_id: str
    actor: str
    slot: Natural
    data: bytes
    digest: Annotated[str, msgspec.Meta(max_length=NAME_LIMIT)]
    since: Annotated[str, msgspec.Meta(max_length=NAME_LIMIT)] = ""
    serial: Natural = 0


class Renew(Request[tuple[str, ...]]):
    """Extends leases, as a heartbeat. Returns the groups that this actor no longer holds."""

    group_ids: Sequence[str]
    actor: str
    metrics: dict[str, float] = msgspec.field(default_factory=dict)


class Release(Request[tuple[str, ...]]):
    """Gives leases back. Accepted results stay. Returns the groups that this actor held."""

    group_ids: Sequence[str]
    actor: str


class DrawGroups(Request["DrawHead"]):
    """Asks for a batch."""

    count: Integer
    version: Natural
    consumer: str


class GetDrawn(Request["Records"]):
    """Asks for the next part of a draw's records: its groups, then its recalled attempts. `at`:
    number of the first record to send."""

    draw_id: Integer
    at: Natural


class ReleaseDraws(Request[int]):
    """Ends a consumer's open draws. Returns how many groups can be drawn again. A restarted learner
    sends this request before the first draw."""

    consumer: str = LEARNER


class Commit(Request[int]):
    """Records in the ledger that `step` trained on a draw. Returns the number of drawn groups.
    `version`: the version after the step. `attempts`: shown by the viewer."""

    draw_id: Integer
    step: Natural
    version: Natural
    attempts: Sequence[TrainedAttempt] = ()


class Discard(Request[int]):
    """Drops a draw's groups because they cannot be trained on. Returns how many groups it drops."""

    draw_id: Integer
    cause: str


def encoded(records: Sequence[Record]) -> tuple[msgspec.Raw, ...]:
    """Encodes the results or reflections of a request."""
    return tuple(msgspec.Raw(codec.encode(record)) for record in records)


class Insert(Request[str]):
    """Adds a whole group that no actor of this run played, as material for replay. Returns its id.

    `results`: encoded SlotResults, of the slots 0 to N − 1. `source`: where the group comes from.
    `reflections`: encoded ReflectionRecords. `kind`: the kind of the group's plan.
    """

    task: Task
    results: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=SLOTS_LIMIT)]
    source: str
    reflections: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=SLOTS_LIMIT)] = ()
    kind: str = ""


class UpdatePriorities(Request[int]):
    """Sets the priorities of groups, by id, for samplers that read them. Returns how many were set:
    groups that expired or were evicted are left out."""

    priorities: dict[str, float]


class SetVersion(Request[int]):
    """Sets a learner's start version, and deletes all later steps. Returns how many groups of the
    deleted steps are still stored. Most can be drawn again (buffer.groups.learner_version)."""

    version: Natural


class QueryGroups(Request[list[Group]]):
    """Returns groups of a purpose, tag and state, newest first. Stops after `limit` groups.
    `before`: only groups that are older than this one."""

    purpose: Purpose | None = None
    tag: str | None = None
    state: GroupState | None = None
    limit: Integer = 1000
    before: str = ""


class GetLedger(Request[tuple[str, ...]]):
    """Returns the ids of the groups that a step trained on. Raises NotFound for an unknown step."""

    step: Integer


class GetGroups(Request[list[Group]]):
    """Returns groups in the order of `group_ids`. An unfinished group has what was accepted so
    far."""

    group_ids: Sequence[str]


class GetStats(Request["BufferStats"]):
    """Returns the service's metrics."""


# ── replies ─────────────────────────────────────────────────────────────────────────────────


class Lease(Record):
    """A group to explore. `accepted`, `reflections`: results and reflections of earlier holders.
    `partial`: unfinished results of earlier holders. `handed`: those stored attempts of the plan
    that still exist. `deadline_s`: seconds until the lease expires. On the wire, these results and
    reflections follow the lease. `following`: how many accepted results, partial results and
    reflections there are."""

    group_id: str
    task: Task
    purpose: Purpose
    tag: str
    plan: GroupPlan
    accepted: tuple[SlotResult, ...]
    deadline_s: float
    partial: tuple[SlotResult, ...] = ()
    reflections: tuple[ReflectionRecord, ...] = ()
    handed: tuple[Recalled, ...] = ()
    following: tuple[Natural, Natural, Natural] = (0, 0, 0)


class Wait(Record):
    """There is no group now. `reason`: why; `retry_s`: seconds until the actor should try again.
    `for_weights`: the actor gets no group before it has newer weights."""

    reason: str
    retry_s: float
    for_weights: bool = False


class PutAck(Record):
    """All is on disk. `new`: how many results and reflections were added, 0 for a repeated request.
    `complete`: whether all slots are resolved."""

    new: int
    complete: bool


class Ids(Record):
    """Group ids."""

    group_ids: tuple[str, ...] = ()


class Groups(Record):
    """Announces the groups that follow. `now`: their current states, in the same order. `frames`:
    how many frames each has. `before`: the argument `before` of the request that continues the
    query, "" at its end."""

    now: tuple[Status, ...] = ()
    frames: tuple[Natural, ...] = ()
    before: str = ""


class Records(Record):
    """Announces records of a draw. `frames`: how many frames each has, 0 for a recalled attempt
    that no longer exists. `left`: how many records come after them."""

    frames: tuple[Natural, ...] = ()
    left: Natural = 0


class Amount(Record):
    """A count. What it counts depends on the operation."""

    count: int = 0


class DrawHead(Record):
    """Announces a batch, or says why there is none (`reason`). Its first records follow, and
    `get_drawn` has the others: the groups, then the recalled attempts. `now`: state of each group.
    `frames`, `left`: as in Records."""

    row: DrawRow | None = None
    now: tuple[Status, ...] = ()
    reason: str = ""
    frames: tuple[Natural, ...] = ()
    left: Natural = 0


class BufferStats(Record):
    """Metrics of the service.

    Groups and results now:
    - `train`, `eval`: groups in each state; `eval_progress`: (finished, all) tasks of each tag
    - `drawn_by`: number of groups in the open draws of each consumer

    Counted since the store was created:
    - `inserted`: groups that clients inserted; `trained` does not count them until their first step
    - `made`: groups, the sum of `train`, `eval` and `evicted`
    - `drops`: expired groups, keyed by cause
    - `stale_share`: share of the trained and expired groups that expired as too old
    - `replaced`: expired groups that the algorithm refused, keyed by cause
    - `slot_drops`: failed slots, and attempts lost with their group, keyed by "role/cause"
    - `partial_dropped`: partial attempts that no actor can continue, keyed by cause
    - `archived`: groups whose record is in the archive (buffer.archive)
    - `archive_failed`: failures to archive groups, which stay in the store, keyed by kind
    - `algorithm_failed`: failed calls of the algorithm (buffer.sampling.algorithm_calls), keyed by
      method
    - `rewound`: groups that were still stored when a learner took back their step
    - `rewound_evicted`: groups evicted before their step was taken back; still counted in `trained`

    Since the service started:
    - `actors`: each actor's latest metrics, with `seen_s`: seconds since it last sent metrics
    - `refused`: what the service did not take, keyed by cause:
      - requests answered with an error, by error or symptom (r3l.rollout.engine_symptoms)
      - `dropped` and `damaged` requests; their clients send them again
      - connections refused or shut down, by reason
      - `failed_transactions`, and `metrics_not_finite` of actors
    - `undelivered`: replies whose client was gone or too slow
    - `full_ago_s`: seconds since a connection was last refused because the service was full, or
      None
    - `cpu_s`: CPU seconds of the service; `started`: when it started, seconds since the epoch
    """

    train: dict[str, int] = msgspec.field(default_factory=dict)
    eval: dict[str, int] = msgspec.field(default_factory=dict)
    drops: dict[str, int] = msgspec.field(default_factory=dict)
    stale_share: float = 0.0
    replaced: dict[str, int] = msgspec.field(default_factory=dict)
    slot_drops: dict[str, int] = msgspec.field(default_factory=dict)
    partial_dropped: dict[str, int] = msgspec.field(default_factory=dict)
    algorithm_failed: dict[str, int] = msgspec.field(default_factory=dict)
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
    inserted: int = 0
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
    archived: int = 0
    archive_failed: dict[str, int] = msgspec.field(default_factory=dict)
    cpu_s: float = 0.0
    started: float = 0.0
    full_ago_s: float | None = None


# ── the table ───────────────────────────────────────────────────────────────────────────────

Thread = Literal["writer", "drawer", "reader"]


@dataclass(frozen=True)
class Operation:
    """One operation. Only the thread `writer` may change the store; `drawer` sends the records of
    draws, so they wait for no query. `keeps_reply`: see buffer.server.idempotency. `learner`: needs
    a learner's key, if keys are used."""

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
    Operation("get_drawn", GetDrawn, (Records,), "drawer", learner=True),
    Operation("release_draws", ReleaseDraws, (Amount,), "writer", keeps_reply=True, learner=True),
    Operation("commit", Commit, (Amount,), "writer", learner=True),
    Operation("discard", Discard, (Amount,), "writer", learner=True),
    Operation("insert", Insert, (Ids,), "writer", keeps_reply=True, learner=True),
    Operation("update_priorities", UpdatePriorities, (Amount,), "writer", learner=True),
    Operation("set_version", SetVersion, (Amount,), "writer", keeps_reply=True, learner=True),
    Operation("query", QueryGroups, (Groups,), "reader"),
    Operation("ledger", GetLedger, (Ids,), "reader"),
    Operation("get", GetGroups, (Groups,), "reader"),
    Operation("stats", GetStats, (BufferStats,), "writer"),
)
OPERATIONS = {row.name: row for row in _ROWS}
NAMES = {row.request: row.name for row in _ROWS}

"""Messages between client and service: their records and their frames.

    request  [header {v, op, rid, hold_s}] [arguments] [records]?
    answer   [header {v, rid, ok: true}]   [result]    [records] ...
             [header {v, rid, ok: false, error, message, facts}]

Arguments and results are the records below, encoded like every record. A put carries its slot
results, an answer with groups their immutable records and, in its result, the state each is in
now. Records lie back to back in few large frames, since every frame costs as much time as some
10 kB; `sizes` in the arguments or the result says where each ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from buffer.storage.rows import Evicted, Status
from buffer.wire.frames import Encoded, Frame, split_records
from r3l import codec
from r3l.errors import (
    LimitExceeded,
    R3LError,
    RecordError,
    SchemaVersionError,
    UnknownVerb,
    to_wire,
)
from r3l.records import (
    Group,
    GroupPlan,
    GroupState,
    Integer,
    Purpose,
    Record,
    Role,
    SlotResult,
    Task,
)

PROTOCOL = 3
MESSAGE_LIMIT = 4 * codec.RECORD_LIMIT  # bytes; a larger frame ends the connection
CREDIT = 256  # requests a client may have waiting for an answer
HOLD_LIMIT_S = 3600.0  # seconds an answer may be held back
GROUPS_LIMIT = 4096  # groups in one answer
SLOTS_LIMIT = 1024  # slots of a group
TASK_LIMIT = 1 << 20  # bytes of one task
NAME_LIMIT = 200  # characters of an actor or consumer


# ── arguments ───────────────────────────────────────────────────────────────────────────────


class AddTasks(Record):
    """Register tasks under a purpose and tag."""

    tasks: tuple[Task, ...]
    purpose: Purpose
    tag: str
    min_version: Integer


class AskLease(Record):
    """Ask for a group to explore."""

    actor: str
    version: Integer
    plan: GroupPlan
    metrics: dict[str, float]


class Put(Record):
    """Resolve slots of one group; the slot results follow."""

    group_id: str
    actor: str
    fingerprint: tuple[Integer, str] | None
    sizes: tuple[Integer, ...] = ()


class Resolve(Record):
    """Resolve a slot that has nothing to show: failed with a cause, or not triggered without."""

    group_id: str
    actor: str
    role: Role
    slot: Integer
    cause: str


class Renew(Record):
    """Heartbeat for leases."""

    group_ids: tuple[str, ...]
    actor: str
    metrics: dict[str, float]


class Release(Record):
    """Give leases back."""

    group_ids: tuple[str, ...]
    actor: str


class AskDraw(Record):
    """Ask for a batch."""

    count: Integer
    version: Integer
    consumer: str


class ReleaseDraws(Record):
    """Give back what was drawn and not committed."""

    consumer: str


class Commit(Record):
    """A batch was trained."""

    draw_id: Integer
    step: Integer
    version: Integer


class Discard(Record):
    """A batch cannot be trained on."""

    draw_id: Integer
    cause: str


class LimitStaleness(Record):
    """Lower max_staleness."""

    max_staleness: Integer


class SetVersion(Record):
    """The version the learner starts from."""

    version: Integer


class AskHistory(Record):
    """Finished groups of one task."""

    task_id: str
    count: Integer
    newest_first: bool


class AskQuery(Record):
    """Groups by purpose, tag and state."""

    purpose: Purpose | None
    tag: str | None
    state: GroupState | None
    limit: Integer


class AskLedger(Record):
    """Groups a step was trained on."""

    step: Integer


class AskGroups(Record):
    """Groups by id."""

    group_ids: tuple[str, ...]


class AskEvict(Record):
    """Evict some of the groups that limits leave no room for."""

    limits: dict[str, Any]  # the fields of RetentionConfig


class AskStats(Record):
    """The service's figures."""


ARGUMENTS: dict[str, type[Any]] = {
    "add_tasks": AddTasks,
    "lease": AskLease,
    "put": Put,
    "resolve": Resolve,
    "renew": Renew,
    "release": Release,
    "draw": AskDraw,
    "release_draws": ReleaseDraws,
    "commit": Commit,
    "discard": Discard,
    "limit_staleness": LimitStaleness,
    "set_version": SetVersion,
    "history": AskHistory,
    "query": AskQuery,
    "ledger": AskLedger,
    "get": AskGroups,
    "evict": AskEvict,
    "would_evict": AskEvict,
    "stats": AskStats,
}

# ── results ─────────────────────────────────────────────────────────────────────────────────


class Lease(Record):
    """A group to explore. `accepted`: results an earlier holder delivered, not to be redone.

    `deadline_s`: seconds from now until another actor may take the group, unless renewed.
    """

    group_id: str
    task: Task
    purpose: Purpose
    tag: str
    plan: GroupPlan
    accepted: tuple[SlotResult, ...]
    deadline_s: float


class Wait(Record):
    """No group now: who waits for whom, and after how many seconds to ask again."""

    reason: str
    retry_s: float


class PutAck(Record):
    """The results are on disk. `new`: how many were not when this request arrived, none where it
    was sent again; `complete`: the group is whole."""

    new: int
    complete: bool


class Ids(Record):
    """Some group ids."""

    group_ids: tuple[str, ...] = ()


class Groups(Record):
    """Groups follow, in this order."""

    now: tuple[Status, ...] = ()
    sizes: tuple[int, ...] = ()


class Amount(Record):
    """A number of things."""

    count: int = 0


class DrawHead(Record):
    """A batch follows; draw 0: none yet, for this `reason`."""

    draw_id: int = 0
    version: int = 0
    probabilities: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    now: tuple[Status, ...] = ()
    sizes: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Draw:
    """A batch of complete groups, drawn by the learner while at `version`.

    `groups` are decoded and checked when they are first looked at, each by itself; `records` are
    the same as they were stored, encoded.
    `probabilities`, `weights`: of each group, as in buffer.groups.samplers.Pick; 1 for samplers
    that leave nothing to chance.
    """

    draw_id: int
    groups: Sequence[Group]
    version: int
    probabilities: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    records: tuple[bytes | memoryview, ...] = ()


class BufferStats(Record):
    """The service's figures, since the store was made unless said otherwise.

    `train`, `eval`: groups by state now; `made` is their sum and `evicted`. `held_bytes`: of
    the results they hold. `drops`: expired groups by cause. `slot_drops`: by "role/cause", slots
    that failed and attempts lost with their group; `drops_by_task`: the same by task, for the
    tasks that lost most. `quorums`: groups completed without their stragglers. `rewound`:
    groups of steps a learner went back before, `rewound_evicted` of them were gone by then and
    stay among the `trained`.
    `eval_progress`: tag -> (finished, all).
    `actors`: latest metrics by actor, with `seen_s` seconds since it was heard, since the
    service started. `refused`: error replies by error, and `unanswered`: replies whose client
    was gone or too slow, since the service started. `drawn_by`: groups in draws that are neither
    committed nor given back, by consumer. `oldest_view_s`: how long another process
    has looked into the store at one moment, which keeps freed pages from being used again.
    """

    train: dict[str, int] = msgspec.field(default_factory=dict)
    eval: dict[str, int] = msgspec.field(default_factory=dict)
    drops: dict[str, int] = msgspec.field(default_factory=dict)
    slot_drops: dict[str, int] = msgspec.field(default_factory=dict)
    drops_by_task: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    quorums: int = 0
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
    evicted_bytes: int = 0
    held_bytes: int = 0
    learner_version: int = 0
    max_staleness: int = 0
    tasks: int = 0
    epoch: int = 0
    disk_bytes: int = 0
    free_bytes: int = 0
    uptime_s: float = 0.0
    oldest_view_s: float = 0.0
    eval_progress: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    actors: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    unanswered: int = 0
    drawn_by: dict[str, int] = msgspec.field(default_factory=dict)


RESULTS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Lease, Wait, PutAck, Ids, Groups, Amount, DrawHead, Evicted, BufferStats)
}

# ── frames ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Request:
    """One request as the service sees it. `hold_s`: how long the answer may be held back."""

    op: str
    rid: str
    arguments: Any
    records: tuple[Encoded, ...] = ()
    hold_s: float = 0.0


def parse_request(header: dict[str, Any], frames: Sequence[Frame]) -> Request:
    """A request from its unpacked header and the frames behind it; raises for a bad one."""
    op, hold_s = header.get("op"), header.get("hold_s", 0.0)
    if not isinstance(op, str) or op not in ARGUMENTS:
        raise UnknownVerb(f"there is no verb {op!r:.40}; there are {', '.join(ARGUMENTS)}")
    if type(hold_s) is not float or not 0.0 <= hold_s <= HOLD_LIMIT_S:
        raise RecordError(f"hold_s is {hold_s!r:.40}; it must be 0 to {HOLD_LIMIT_S} seconds")
    if len(frames) != (2 if op == "put" else 1):
        raise RecordError(f"{op} with {len(frames)} frames behind its header")
    arguments = codec.decode(ARGUMENTS[op], frames[0])
    records: list[memoryview] = []
    if op == "put":
        if not 1 <= len(arguments.sizes) <= SLOTS_LIMIT:
            raise RecordError(f"put of {len(arguments.sizes)} results; 1 to {SLOTS_LIMIT} can be")
        codec.check_size(frames[1])
        records = split_records(frames[1:], arguments.sizes)
    return Request(op, header["rid"], arguments, tuple(records), hold_s)


def request_frames(op: str, rid: str, arguments: Any, records: bytes, hold_s: float) -> list[bytes]:
    """A request as frames; raises LimitExceeded before anything is sent that would be refused."""
    header = {"v": PROTOCOL, "op": op, "rid": rid, "hold_s": hold_s}
    if len(records) > codec.RECORD_LIMIT:
        raise LimitExceeded(f"{op}: {len(records)} bytes; the limit is {codec.RECORD_LIMIT}")
    try:
        frames: list[bytes] = [codec.pack(header), codec.encode(arguments)]
    except RecordError as error:
        if error.cause != "too_large":
            raise
        raise LimitExceeded(f"{op}: {error}; ask for less at a time") from None
    return [*frames, records] if records else frames


def answer_frames(rid: str, result: Any, records: Sequence[bytes] = ()) -> list[bytes]:
    """A result as frames; `records`: those that follow it, already `together`."""
    header = {"v": PROTOCOL, "rid": rid, "ok": True, "kind": type(result).__name__}
    return [codec.pack(header), codec.encode(result), *records]


def error_frames(rid: str, error: R3LError) -> list[bytes]:
    """An error as frames."""
    return [codec.pack({"v": PROTOCOL, "rid": rid, "ok": False, **to_wire(error)})]


def check_header(header: dict[str, Any]) -> None:
    """Raise unless the header is of a protocol and form this code knows."""
    version, rid = header.get("v"), header.get("rid")
    if version != PROTOCOL or type(version) is not int:
        raise SchemaVersionError(f"protocol {version!r:.40}; this r3l speaks {PROTOCOL}")
    if not isinstance(rid, str) or not 0 < len(rid) <= 64:
        raise RecordError("a request needs an id of 1 to 64 characters", field="rid")

"""Rows: the mutable state of groups, draws and the run, apart from the immutable records.

Rows are small and rewritten at every change. The service's memory is rebuilt from them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from r3l.records import GroupPlan, GroupState, Integer, Purpose, Record, Role

Dropped = Literal["group", "base", "distilled"]
Drop = tuple[str, Dropped, str]  # what is never trained on: cause, kind, task id
DrawOutcome = Literal["open", "trained", "released", "expired", "rewound", "discarded"]


class RecalledRow(Record):
    """A stored attempt that joins the drawn group `into` (r3l.algorithms.recall), or that
    the new group `into` is handed (r3l.rollout.explorers)."""

    into: str
    group_id: str
    role: Role
    slot: int


class GroupRow(Record):
    """The mutable state of one group; its states are those of buffer.groups.states.

    `task_index`: place of the task in its list. `actor`: holder of the lease, "" after a release.
    `deadline`: wall-clock second after which another actor may take the group over;
    `lease_expired`: that deadline passed and was counted. `rid`: id of the request that got
    the lease; a request that is sent again gets the same lease.
    `resolved`: slots in the order of their results; `checksums`: of these results, in this order.
    `done`: slots with a trajectory, `done_base` of them base slots, `rewards` in the order they
    came; `failures`: "role/cause" of every failed slot. `oldest_version`: of all
    trajectories, -1 without one. `nbytes`: size of the results. `fingerprints`: hashes of the
    weights by policy version. `cause`: why the group expired. `times`: second at which each state
    was entered. `draw_id`: latest draw, 0 after its return. `steps`: steps it was trained in.
    `handed`: stored attempts that its attempts begin with.
    """

    group_id: str
    task_id: str
    task_index: int
    plan: GroupPlan
    state: GroupState
    purpose: Purpose = "train"
    tag: str = ""
    actor: str = ""
    deadline: float = 0.0
    lease_expired: bool = False
    rid: str = ""
    resolved: tuple[tuple[Role, int], ...] = ()
    done: int = 0
    done_base: int = 0
    oldest_version: int = -1
    rewards: tuple[float, ...] = ()
    nbytes: int = 0
    checksums: tuple[int, ...] = ()
    failures: tuple[str, ...] = ()
    cause: str = ""
    times: dict[str, float] = msgspec.field(default_factory=dict)
    fingerprints: dict[int, str] = msgspec.field(default_factory=dict)
    draw_id: int = 0
    steps: tuple[int, ...] = ()
    handed: tuple[RecalledRow, ...] = ()

    def with_changes(self, **changes: Any) -> GroupRow:
        """A copy with other values of these fields."""
        return msgspec.structs.replace(self, **changes)

    @property
    def unfinished(self) -> bool:
        """True if slots are open."""
        return self.state in ("leased", "filling")

    @property
    def has_holder(self) -> bool:
        """True if an actor has the lease and its deadline has not passed."""
        return self.unfinished and bool(self.actor) and not self.lease_expired

    @property
    def slots(self) -> int:
        """Number of slots of the plan."""
        return self.plan.base + self.plan.distilled

    @property
    def all_resolved(self) -> bool:
        """True if every slot is resolved."""
        return len(self.resolved) == self.slots

    @property
    def contrast(self) -> float:
        """Largest minus smallest reward; 0 without two trajectories."""
        return max(self.rewards) - min(self.rewards) if self.rewards else 0.0

    @property
    def closed(self) -> bool:
        """True for a trained, expired or finished evaluation group; it may be evicted."""
        return self.state in ("trained", "expired") or (
            self.purpose == "eval" and self.state == "complete"
        )


class Status(Record):
    """The fields of a group that change after its record is written; `steps` as in GroupRow."""

    state: GroupState
    cause: str
    times: dict[str, float]
    steps: tuple[int, ...] = ()


class DrawRow(Record):
    """One drawn batch and its outcome; never deleted.

    `probabilities`, `weights`: of each group, as in buffer.sampling.samplers.Pick. `replaced`: the
    groups that expired without contrast since the draw before, the newest of them if they are many.
    `recalled`: stored attempts that the algorithm recalls into the groups. `replayed`: the groups
    that were trained before.
    """

    draw_id: int
    rid: str
    consumer: str
    version: int
    groups: tuple[str, ...]
    sampler: str
    when: float
    probabilities: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    outcome: DrawOutcome = "open"
    step: int = -1
    replaced: tuple[str, ...] = ()
    recalled: tuple[RecalledRow, ...] = ()
    replayed: tuple[str, ...] = ()


class TrainedAttempt(Record):
    """How an optimizer step trained on one attempt of its draw. Attempts that it left out, or whose
    gradient was zero, have none.

    `into`: the drawn group; `group_id`: the group that the attempt is stored with, another one if
    it was recalled. `advantage`: of its tokens, their mean if they differ (`by_token`).
    `first_step`: all responses from this step on were trained. `weight`: of each trained token in
    the loss, the group's importance weight included.
    """

    into: str
    group_id: str
    role: Role
    slot: Integer
    advantage: float
    first_step: Integer
    weight: float
    by_token: bool = False


class LedgerRow(Record):
    """The groups that an optimizer step was trained on, and how it trained on their attempts."""

    step: int
    draw_id: int
    version: int
    groups: tuple[str, ...]
    when: float
    attempts: tuple[TrainedAttempt, ...] = ()


class Progress(Record):
    """The learner's version, and the position in the task lists.

    `newest`: the newest version before the learner went back to a checkpoint, if it did.
    Training leases the `size` tasks of `epoch` in a shuffled order and has leased `position` of
    them. `eval_next`: tasks leased so far by evaluation tag; `eval_min_version`: the policy version
    it needs. `staleness_limit`: what the learner lowered max_staleness to, -1 if it did not.
    `replaced`: groups that expired without contrast since the last draw, which the next one names.
    `closed`: no actor will add groups (buffer.tools.finished_copy).
    """

    version: int = 0
    staleness_limit: int = -1
    epoch: int = 0
    position: int = 0
    size: int = 0
    eval_next: dict[str, int] = msgspec.field(default_factory=dict)
    eval_min_version: dict[str, int] = msgspec.field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    newest: int = 0
    closed: bool = False

    @property
    def newest_version(self) -> int:
        """The newest version that any learner has made; engines may hold it a little longer than
        the learner that goes back."""
        return max(self.newest, self.version)


class Regraded(Record):
    """The origin of a regraded store: a copy whose rewards were computed again.

    `store`: folder of the old one; `env`, `options`: the environment; `when`: wall-clock second.
    `attempts`: how many were replayed; `changed`: those with another reward; `diverged`: those left
    out because the environment did not repeat what the policy had read.
    """

    store: str
    env: str
    options: dict[str, Any]
    when: float
    attempts: int
    changed: int
    diverged: int


class Evicted(Record):
    """Evicted groups, or those that would be: their number, bytes of results, first and last id.

    `more`: whether further groups have to be evicted; call again.
    """

    groups: int = 0
    nbytes: int = 0
    first: str = ""
    last: str = ""
    more: bool = False

    def __add__(self, later: Evicted) -> Evicted:
        return Evicted(
            self.groups + later.groups,
            self.nbytes + later.nbytes,
            self.first or later.first,
            later.last or self.last,
            later.more,
        )

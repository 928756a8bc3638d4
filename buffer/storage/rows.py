"""What the store remembers about a group, a draw and itself, apart from the immutable records.

These are small, rewritten as things happen, and enough to rebuild everything the service
keeps in memory.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from r3l.records import GroupPlan, GroupState, Purpose, Record, Role

Dropped = Literal["group", "base", "distilled"]
Drop = tuple[str, Dropped, str]  # what is lost, for counting: cause, what, task id
DrawOutcome = Literal["open", "trained", "released", "expired", "rewound", "discarded"]


class GroupRow(Record):
    """The mutable state of one group.

    `actor` holds the lease until another takes the group over; "" after it was given back.
    `deadline`: wall-clock second at which another actor may take it over; `lease_expired` once that
    was noticed and counted. `rid`: request that was answered with the lease, so that asking
    again after a lost answer gives the same one. `done`: slots with a trajectory, `done_base`
    of them base slots, `rewards` theirs as they came; `oldest`: oldest policy version among
    them, -1 for none; `nbytes`: size of the accepted results; `checksums`: those of `resolved`, as
    in buffer.storage.checksums. `failures`: "role/cause" of every failed slot. `task_index`: place
    of the task in its list. `draw_id`: its latest draw, 0 once that was given back. `steps`:
    optimizer steps it was trained in.
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
    oldest: int = -1
    rewards: tuple[float, ...] = ()
    nbytes: int = 0
    checksums: tuple[int, ...] = ()
    failures: tuple[str, ...] = ()
    cause: str = ""
    times: dict[str, float] = msgspec.field(default_factory=dict)
    fingerprints: dict[int, str] = msgspec.field(default_factory=dict)
    draw_id: int = 0
    steps: tuple[int, ...] = ()

    def but(self, **changes: Any) -> GroupRow:
        """Itself with other values of these fields."""
        return msgspec.structs.replace(self, **changes)

    @property
    def unfinished(self) -> bool:
        """Waiting for slots to be resolved."""
        return self.state in ("leased", "filling")

    @property
    def held(self) -> bool:
        """An actor has the lease and may still deliver before another can take over."""
        return self.unfinished and bool(self.actor) and not self.lease_expired

    @property
    def slots(self) -> int:
        """How many slots the plan has."""
        return self.plan.base + self.plan.distilled

    @property
    def whole(self) -> bool:
        """Every slot of the plan is resolved."""
        return len(self.resolved) == self.slots

    @property
    def contrast(self) -> float:
        """Largest minus smallest reward; 0 without two trajectories."""
        return max(self.rewards) - min(self.rewards) if self.rewards else 0.0

    @property
    def closed(self) -> bool:
        """Nothing can happen to it any more: trained, expired, or a finished evaluation."""
        return self.state in ("trained", "expired") or (
            self.purpose == "eval" and self.state == "complete"
        )


class Status(Record):
    """What has changed about a group since its record was written."""

    state: GroupState
    cause: str
    times: dict[str, float]


class DrawRow(Record):
    """One batch handed to a learner and what became of it; never deleted.

    `probabilities`, `weights`: of each group, as in buffer.groups.samplers.Pick.
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


class LedgerRow(Record):
    """The groups an optimizer step was computed from."""

    step: int
    draw_id: int
    version: int
    groups: tuple[str, ...]
    when: float


class Progress(Record):
    """Where the service stands: learner's version, task cycle, evaluation lists.

    The cycle leases the `size` training tasks of `epoch` in a shuffled order and has leased
    `position` of them. `eval_next`: tasks of each tag leased so far. `staleness_limit`: what the
    learner lowered max_staleness to, -1 if it did not.
    """

    version: int = 0
    staleness_limit: int = -1
    epoch: int = 0
    position: int = 0
    size: int = 0
    eval_next: dict[str, int] = msgspec.field(default_factory=dict)
    eval_min_version: dict[str, int] = msgspec.field(default_factory=dict)


class Evicted(Record):
    """What went, or would go: so many groups, `nbytes` of results, the first and last of them.

    `more`: there is more to evict; ask again.
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

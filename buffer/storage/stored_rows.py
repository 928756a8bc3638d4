"""Rows: the mutable state of groups, draws and the run. Records are immutable and stored apart.

Rows are small and rewritten at every change. The service rebuilds its memory from the rows.
"""

from typing import Any, Literal, Self

import msgspec

from r3l.algorithms.guidance_gain import GroupGain
from r3l.records import GroupPlan, GroupState, Integer, Purpose, Record

DrawOutcome = Literal["open", "trained", "released", "expired", "rewound", "discarded"]


class RecalledRow(Record):
    """A stored attempt that joined the drawn group `into`. `group_id`: the attempt's own group."""

    into: str
    group_id: str
    slot: int


class ArchivePlace(Record):
    """Where a record is archived (buffer.storage.archive_files): the file's name, the row group,
    the line in it, and the record's digest."""

    file: str
    row_group: Integer
    row: Integer
    digest: str


class GroupRow(Record):
    """The mutable state of one group. For its states, see buffer.groups.states.

    `task_index`: place of the task in its list. `actor`: last lease holder, "" after a release.
    `deadline`: wall-clock second at which the lease is overdue. `lease_expired`: the lease was
    overdue, or its actor was silent. `rid`: id of the lease request. `resolved_slots`: slots in the
    order of their results. `of`: for each of them the slot that it retries, or -1. `checksums`: one
    for each resolved slot. `played`: slots with a trajectory. `rewards`: one for each played slot.
    `failures`: "role/cause" of each failed slot. `reflections`: (name, checksum) of each accepted
    one. `oldest_version`: oldest policy version in the trajectories, or -1. `nbytes`: size of the
    results and reflections. `fingerprints`: weight hashes, by policy version. `cause`: why the
    group expired. `replaced`: it expired because the algorithm refused it. `times`: second at which
    the group entered each state. `draw_id`: the latest draw, or 0 if there is none or the draw was
    undone. `steps`: optimizer steps that trained on the group. `source`: where an inserted group
    comes from; "" if actors of this run played it. `priority`: given by a consumer, or None. `env`:
    name of the environment. `archived`: where the record is, if it is not in the store.

    The names of buffer.tools.group_facts, which filters use, are attributes of a row.
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
    resolved_slots: tuple[int, ...] = msgspec.field(default=(), name="resolved")
    of: tuple[int, ...] = ()
    played: tuple[int, ...] = ()
    oldest_version: int = -1
    rewards: tuple[float, ...] = ()
    nbytes: int = 0
    checksums: tuple[int, ...] = ()
    failures: tuple[str, ...] = ()
    reflections: tuple[tuple[str, int], ...] = ()
    cause: str = ""
    replaced: bool = False
    times: dict[str, float] = msgspec.field(default_factory=dict)
    fingerprints: dict[int, str] = msgspec.field(default_factory=dict)
    draw_id: int = 0
    steps: tuple[int, ...] = ()
    source: str = ""
    priority: float | None = None
    env: str = ""
    archived: ArchivePlace | None = None

    def with_changes(self, **changes: Any) -> Self:
        return msgspec.structs.replace(self, **changes)

    @property
    def done(self) -> int:
        """Number of slots with a trajectory."""
        return len(self.played)

    @property
    def base_rewards(self) -> list[float]:
        """The rewards of the attempts that are not retries."""
        return [reward for _, of, reward in self.attempts if of < 0]

    @property
    def attempts(self) -> list[tuple[int, int, float]]:
        """(slot, of, reward) of every trajectory, in the order of the slots. `of`: the slot that
        the attempt retries, or -1."""
        of = dict(zip(self.resolved_slots, self.of, strict=True))
        pairs = sorted(zip(self.played, self.rewards, strict=True))
        return [(slot, of[slot], reward) for slot, reward in pairs]

    @property
    def is_fresh(self) -> bool:
        """True if actors of this run played the group, and no step has trained on it."""
        return not self.steps and not self.source

    @property
    def unfinished(self) -> bool:
        return self.state in ("leased", "filling")

    @property
    def has_holder(self) -> bool:
        """True if an actor holds a lease that is not marked as expired."""
        return self.unfinished and bool(self.actor) and not self.lease_expired

    @property
    def slots(self) -> int:
        return self.plan.slots

    @property
    def all_resolved(self) -> bool:
        return len(self.resolved_slots) == self.slots

    @property
    def contrast(self) -> float:
        """Largest minus smallest reward, or 0 if there are fewer than two trajectories."""
        return max(self.rewards) - min(self.rewards) if self.rewards else 0.0

    # ── what filters call it ────────────────────────────────────────────────────────────

    @property
    def group(self) -> str:
        return self.group_id

    @property
    def task(self) -> str:
        return self.task_id

    @property
    def reward(self) -> float | None:
        """The best reward, or None if there is no trajectory."""
        return max(self.rewards, default=None)

    @property
    def mean_reward(self) -> float | None:
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def min_reward(self) -> float | None:
        return min(self.rewards, default=None)

    @property
    def gain(self) -> float | None:
        """The most that a retry earned above the attempt that it retries, or None."""
        earned = {slot: reward for slot, _, reward in self.attempts}
        gains = [reward - earned[of] for _, of, reward in self.attempts if of in earned]
        return max(gains, default=None)

    @property
    def version(self) -> int:
        return self.oldest_version

    @property
    def resolved(self) -> int:
        """Number of slots with a result."""
        return len(self.resolved_slots)

    @property
    def step(self) -> int:
        """The last optimizer step that trained on the group, or -1."""
        return self.steps[-1] if self.steps else -1

    @property
    def uses(self) -> int:
        """Number of optimizer steps that trained on the group."""
        return len(self.steps)

    @property
    def bytes(self) -> int:
        return self.nbytes

    def listed_under(
        self, purpose: Purpose | None, tag: str | None, state: GroupState | None
    ) -> bool:
        """Whether the group has this purpose, tag and state. None: any."""
        return (
            purpose in (None, self.purpose)
            and tag in (None, self.tag)
            and (state in (None, self.state))
        )

    @property
    def closed(self) -> bool:
        """True if the group may be evicted: it is trained, expired or a finished evaluation."""
        return is_closed(self.purpose, self.state)


def is_closed(purpose: Purpose, state: GroupState) -> bool:
    """True if groups of this purpose and state may be evicted."""
    return state in ("trained", "expired") or (purpose == "eval" and state == "complete")


class ProgressLink(Record):
    """A link of the chain of a slot's progress (buffer.groups.progress). `data`: in the first link
    the encoded result so far, in a later link only what is new (buffer.wire.increments). `digest`:
    digest of the encoded result so far. `rid`: id of the sender's lease request. `serial`: the
    sender's count of what it sent under this lease; 0 if it does not count. `nbytes`: size of the
    chain up to this link."""

    data: bytes
    digest: str
    rid: str
    serial: Integer = 0
    nbytes: Integer = 0


class Status(Record):
    """A group's state. The state can change after the group's record is written."""

    state: GroupState
    cause: str
    times: dict[str, float]


class DrawRow(Record):
    """One drawn batch and its outcome.

    `probabilities`, `weights`: one for each group (buffer.sampling.samplers.Pick). `replaced`: the
    newest groups that the algorithm refused since the previous draw. `recalled`: stored attempts
    that join the groups. `replayed`: drawn groups that an earlier step trained on, or that were
    inserted.
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
    """How an optimizer step used one attempt of a draw. An attempt without a gradient has no such
    record.

    `into`: the drawn group. `group_id`: the group that stores the attempt. `advantage`: advantage
    of every token, or with `by_token` the mean over the tokens. `first_step`: index of the first
    trained turn. `weight`: weight of each trained token in the loss, including the group's
    importance weight. `reliance`: for a retry, how much less likely its trained tokens are without
    the guidance that it read, in nats, averaged over the tokens (r3l.algorithms.shared.reliance);
    None for other attempts, and for retries that were replayed or have no log-probabilities.
    """

    into: str
    group_id: str
    slot: Integer
    advantage: float
    first_step: Integer
    weight: float
    by_token: bool = False
    reliance: float | None = None


class LedgerRow(Record):
    """Records the groups of an optimizer step, and how the step used each attempt."""

    step: int
    draw_id: int
    version: int
    groups: tuple[str, ...]
    when: float
    attempts: tuple[TrainedAttempt, ...] = ()


class Regrade(Record):
    """A note that the rewards of a store are not those of its run. `store`: the store whose
    attempts were judged again. `env`, `options`: the environment or grader that judged. `when`: in
    seconds since the epoch. `attempts`: number judged again; `changed` of them got another reward.
    `left_out`: number of attempts that could not be judged, by cause; their slots have failed."""

    store: str
    env: str
    options: str
    when: float
    attempts: int
    changed: int
    left_out: dict[str, int] = msgspec.field(default_factory=dict)


class Regrades(Record):
    """All regrades that a store went through, oldest first."""

    done: tuple[Regrade, ...] = ()


class RunPosition(Record):
    """The learner's version, and the position in the task lists.

    `newest`: the newest version known when a learner last set its version. `epoch`: the current
    pass over the training tasks. `size`: number of groups in the epoch. `position`: number of the
    epoch's groups that were made. `eval_next`: number of leased tasks, by evaluation tag.
    `eval_min_version`: lowest policy version needed, by evaluation tag. `replaced`: groups that
    the algorithm refused since the last draw. `gains`: guidance gains of groups with
    retries, newest first.
    `closed`: no actor will add groups (buffer.tools.finished_copy). `has_learner`: a learner set
    its version.
    """

    version: int = 0
    epoch: int = 0
    position: int = 0
    size: int = 0
    eval_next: dict[str, int] = msgspec.field(default_factory=dict)
    eval_min_version: dict[str, int] = msgspec.field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    gains: tuple[GroupGain, ...] = ()
    newest: int = 0
    closed: bool = False
    has_learner: bool = False

    @property
    def newest_version(self) -> int:
        """The newest version ever made by a learner. Engines may still hold this version after the
        learner went back to a checkpoint."""
        return max(self.newest, self.version)

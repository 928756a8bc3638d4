"""The records of reflections, slots and explore groups."""

import msgspec
import numpy as np
import numpy.typing as npt

from r3l.errors import RecordError
from r3l.records.record import (
    NAME_LIMIT,
    Bool,
    Float32,
    GroupState,
    Int32,
    Integer,
    Purpose,
    Record,
    Role,
    SlotStatus,
    Task,
    check_array,
    check_cause,
    role_of,
)
from r3l.records.trajectory import Trajectory


class ReflectionRecord(Record):
    """The policy's answer to a question about an attempt, with its conversation.

    `name`: unique in its group; a retry names the reflection that advised it. `of`: the slot of the
    attempt, or -1. `cause`: why the text is not usable (r3l.rollout.reflection.Cause), or "".
    `pivot`: the retry step named in the text, or -1. `token_ids` int32 [L], `logprobs` float32 [L]:
    the question and, from position `start` on, the answer; the log-probabilities are those of
    sampling, 0 outside the answer. `seconds`: wall time of sampling.
    """

    name: str
    text: str
    token_ids: Int32
    logprobs: Float32
    start: Integer = 0
    of: Integer = -1
    cause: str = ""
    outcome: str = ""
    pivot: Integer = -1
    version: Integer = 0
    seconds: float = 0.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        check_array("token_ids", self.token_ids, "int32", (length,))
        check_array("logprobs", self.logprobs, "float32", (length,))
        check_reflection_name(self.name)
        if not 0 <= self.start <= length:
            raise RecordError(f"start {self.start}: must be from 0 to {length}", field="start")

    @property
    def tokens(self) -> int:
        """How many tokens were sampled."""
        return len(self.token_ids) - int(self.start)

    @property
    def response_mask(self) -> Bool:
        """The sampled tokens, as a mask: bool [L]."""
        return np.arange(len(self.token_ids)) >= self.start


class SlotResult(Record):
    """The result of one group slot. A done slot has a trajectory. A failed slot has a cause and no
    reward. A skipped slot was not played on purpose; its cause says why. `of`: the slot whose
    attempt this slot retries or would have retried; -1 if there is none."""

    slot: Integer
    status: SlotStatus
    cause: str = ""
    trajectory: Trajectory | None = None
    of: Integer = -1

    def __post_init__(self) -> None:
        attempt = self.trajectory
        if (self.status == "done") != (attempt is not None):
            raise RecordError("done slots need a trajectory; others must have none", field="status")
        if (self.status == "failed" and not self.cause) or (self.status == "done" and self.cause):
            raise RecordError("failed slots need a cause; done slots must have none", field="cause")
        check_cause(self.cause)
        if self.slot < 0:
            raise RecordError(f"slot {self.slot} is negative", field="slot")
        if attempt is not None and (attempt.slot, attempt.of) != (self.slot, self.of):
            raise RecordError(
                f"slot {self.slot} of {self.of} holds the attempt of slot {attempt.slot} of "
                f"{attempt.of}",
                field="slot",
            )

    @property
    def role(self) -> Role:
        """The role: "distilled" if the slot is for a retry, else "base"."""
        return role_of(self.of)


def done(trajectory: Trajectory) -> SlotResult:
    """Returns the result of a slot whose attempt was played."""
    return SlotResult(trajectory.slot, "done", trajectory=trajectory, of=trajectory.of)


class Recalled(Record):
    """An attempt of the stored group `group_id`, which joins the drawn group `into`."""

    into: str
    group_id: str
    trajectory: Trajectory


class AttemptKey(Record):
    """Identifies a stored attempt."""

    group_id: str
    slot: Integer


class GroupPlan(Record):
    """The plan of a group. The group is complete once each of its `slots` has a result.

    `kind`: an algorithm's word for how the group is explored; "" is its usual way. `handed`: stored
    attempts that the actor gets with the lease; the buffer hands out at most 64, of 4 MiB.
    """

    slots: Integer
    kind: str = ""
    handed: tuple[AttemptKey, ...] = ()


class Group(Record):
    """An explore group: attempts at one task, sampled together. Advantages compare these attempts.

    `times`: when the group entered each state, in wall-clock seconds since the epoch.
    `fingerprints`: policy version -> fingerprint of the engine's weights (r3l.weights.manifest).
    """

    group_id: str
    task: Task
    plan: GroupPlan
    state: GroupState
    results: tuple[SlotResult, ...] = ()
    reflections: tuple[ReflectionRecord, ...] = ()
    purpose: Purpose = "train"
    tag: str = ""
    actor: str = ""
    cause: str = ""
    times: dict[str, float] = msgspec.field(default_factory=dict)
    fingerprints: dict[Integer, str] = msgspec.field(default_factory=dict)

    @property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories of all done slots, in the order of the slots."""
        ordered = sorted(self.results, key=lambda r: r.slot)
        return [r.trajectory for r in ordered if r.trajectory is not None]

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """The rewards, float64 [G], in the order of `trajectories`."""
        return np.array([t.reward for t in self.trajectories], dtype=np.float64)

    @property
    def source(self) -> str:
        """Where the group's attempts were imported from; "" if actors played them."""
        return next((t.source for t in self.trajectories if t.source), "")

    @property
    def oldest_version(self) -> int:
        """The oldest policy version in the group; -1 if the group has no trajectories."""
        return min((t.oldest_version for t in self.trajectories), default=-1)

    @property
    def unresolved(self) -> list[int]:
        """The planned slots without a result."""
        have = {result.slot for result in self.results}
        return [slot for slot in range(self.plan.slots) if slot not in have]

    @property
    def generated_tokens(self) -> int:
        """The number of tokens sampled for the group, in attempts and reflections."""
        attempts = sum(t.generated_tokens for t in self.trajectories)
        return attempts + sum(reflection.tokens for reflection in self.reflections)

    @property
    def retries(self) -> list[tuple[Trajectory, Trajectory]]:
        """The pairs (attempt, retry of this attempt)."""
        attempts = {t.slot: t for t in self.trajectories}
        return [(attempts[t.of], t) for t in self.trajectories if t.of in attempts]


def check_reflection_name(name: str) -> None:
    """Raises RecordError unless `name` is 1 to 80 printable characters."""
    if not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
        raise RecordError(
            f"reflection {name[:80]!a}: must have 1 to {NAME_LIMIT} printable characters",
            field="name",
        )

"""The records: what an attempt, a reflection and an explore group are.

Shapes: L tokens in a trajectory, K steps (K ≥ 1 turns of the policy). Steps count from 0.
Records are frozen; arrays are little-endian and are checked when a record is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from r3l.errors import RecordError

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

Role = Literal["base", "distilled"]
SlotStatus = Literal["done", "not_triggered", "failed"]
GroupState = Literal["leased", "filling", "complete", "drawn", "trained", "expired"]
Purpose = Literal["train", "eval"]
AuxKind = Literal["reflect", "retry"]
GROUP_STATES: tuple[GroupState, ...] = get_args(GroupState)
_INT32, _FLOAT32, _BOOL = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.bool_)
Spans = Sequence[Sequence[int]]  # (start, end) of each step
_ArrayRule = tuple[str, "np.dtype[Any]", tuple[int, ...]]  # name, element type, shape
LARGEST_REWARD = 1e100  # of either sign; its square still fits a float64
STRAGGLER = "straggler"  # cause of a slot that its group did not wait for


@dataclass(frozen=True)
class Task:
    """One query or one seeded environment instance. `task_id` is stable across runs."""

    task_id: str
    env: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trajectory:
    """One attempt: a single token sequence exactly as the engine saw and sampled it.

    token_ids int32 [L]; response_mask bool [L], True on sampled tokens; logprobs float32 [L],
    0 where masked; step_spans int32 [K, 2], (start, end) of each step's response;
    step_versions int32 [K], oldest policy version that sampled the step;
    step_seconds float32 [K], wall time of each step's sampling.

    `pivot` is the step from which a distilled attempt was done again, -1 for a base;
    `slot` counts within the role; `parent` is the base slot a distilled one came from, else -1.
    `actions[k]` is the policy's text at step k; `observations[k]` what it read before step k,
    so there is one more observation (the last reaction) than actions.
    `faults` names the environment's own troubles that the attempt outlived, one name each time.
    """

    role: Role
    slot: int
    token_ids: Int32
    response_mask: Bool
    logprobs: Float32
    step_spans: Int32
    step_versions: Int32
    step_seconds: Float32
    reward: float
    system: str
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    parent: int = -1
    pivot: int = -1
    seed: int = 0
    finish: str = "terminated"
    feedback: str = ""
    faults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        length, steps = len(self.token_ids), len(self.step_spans)
        for name, dtype, shape in attempt_arrays(length, steps):
            _array(self, name, dtype, shape)
        if self.role not in ("base", "distilled"):
            raise RecordError(f"role is {self.role!r}; it must be base or distilled", field="role")
        check_attempt(self, self.step_spans.tolist(), self.response_mask.tobytes())

    @property
    def num_steps(self) -> int:
        """K, the number of the policy's turns."""
        return len(self.step_spans)

    @property
    def oldest_version(self) -> int:
        """The oldest policy version that sampled any step."""
        return int(self.step_versions.min())

    @property
    def generated_tokens(self) -> int:
        """Tokens sampled for this attempt; a distilled one did not sample its prefix."""
        spans = self.step_spans[max(self.pivot, 0) :]
        return int((spans[:, 1] - spans[:, 0]).sum())

    @property
    def messages(self) -> list[dict[str, str]]:
        """The attempt as chat messages, for people; ends with the last reaction."""
        turns = [{"role": "system", "content": self.system}] if self.system else []
        for observation, action in zip(self.observations, self.actions, strict=False):
            turns.append({"role": "user", "content": observation})
            turns.append({"role": "assistant", "content": action})
        return [*turns, {"role": "user", "content": self.observations[-1]}]


@dataclass(frozen=True)
class ReflectionRecord:
    """What the policy wrote when asked to reflect on one base trajectory.

    `cause` is "" when the text parsed, else why not (r3l.rollout.reflection.CAUSES); `outcome` and
    `pivot` are then "" and -1. `pivot` is -1 where the reflection names none.
    """

    text: str
    cause: str = ""
    outcome: str = ""
    pivot: int = -1
    tokens: int = 0
    version: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class AuxSample:
    """A supervised sample: learn the tokens under `response_mask` given those before them."""

    kind: AuxKind
    token_ids: Int32
    response_mask: Bool

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        _array(self, "token_ids", _INT32, (length,))
        _array(self, "response_mask", _BOOL, (length,))


@dataclass(frozen=True)
class SlotResult:
    """How one slot of a group was resolved, with everything that belongs to it.

    `status`: done (has a trajectory) | not_triggered (a retry that was not called for) |
    failed (`cause` says why; never a zero reward). A distilled slot carries the reflection
    that decided about it, where there was one, and the auxiliary samples of a verified correction.
    """

    role: Role
    slot: int
    status: SlotStatus
    cause: str = ""
    trajectory: Trajectory | None = None
    reflection: ReflectionRecord | None = None
    aux: tuple[AuxSample, ...] = ()

    def __post_init__(self) -> None:
        check_slot(self, self.trajectory)


@dataclass(frozen=True)
class GroupPlan:
    """How many slots a group has; every one must be resolved before the group is complete."""

    base: int
    distilled: int = 0

    def slots(self) -> Iterator[tuple[Role, int]]:
        """Every (role, slot) of the plan, base slots first."""
        yield from (("base", slot) for slot in range(self.base))
        yield from (("distilled", slot) for slot in range(self.distilled))

    def last_role(self, slot: int) -> Role:
        """The role that ends the work on a base slot: its retry's, where one is planned."""
        return "distilled" if slot < self.distilled else "base"


@dataclass(frozen=True)
class Group:
    """An explore group: all attempts at one task draw, the unit of advantage and sampling.

    `times`: wall-clock seconds since the epoch of every state it entered.
    `fingerprints`: policy version -> hash of the weights the engine held, as stamped by actors.
    """

    group_id: str
    task: Task
    plan: GroupPlan
    state: GroupState
    results: tuple[SlotResult, ...] = ()
    purpose: Purpose = "train"
    tag: str = ""
    actor: str = ""
    cause: str = ""
    times: dict[str, float] = field(default_factory=dict)
    fingerprints: dict[int, str] = field(default_factory=dict)

    @property
    def trajectories(self) -> list[Trajectory]:
        """Trajectories of all done slots, base first."""
        ordered = sorted(self.results, key=lambda r: (r.role, r.slot))
        return [r.trajectory for r in ordered if r.trajectory is not None]

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """float64 [G], in the order of `trajectories`."""
        return np.array([t.reward for t in self.trajectories], dtype=np.float64)

    @property
    def oldest_version(self) -> int:
        """The oldest policy version in the group; -1 for a group without trajectories."""
        return min((t.oldest_version for t in self.trajectories), default=-1)

    @property
    def unresolved(self) -> list[tuple[Role, int]]:
        """Slots of the plan that have no result yet."""
        have = {(r.role, r.slot) for r in self.results}
        return [slot for slot in self.plan.slots() if slot not in have]

    @property
    def stragglers(self) -> list[tuple[Role, int]]:
        """Slots the group was completed without, after its deadline."""
        return [(r.role, r.slot) for r in self.results if r.cause == STRAGGLER]

    @property
    def generated_tokens(self) -> int:
        """Every token sampled for the group: attempts and reflections."""
        attempts = sum(t.generated_tokens for t in self.trajectories)
        return attempts + sum(r.reflection.tokens for r in self.results if r.reflection)


def attempt_arrays(length: int, steps: int) -> tuple[_ArrayRule, ...]:
    """The arrays of a trajectory of `length` tokens and `steps` steps."""
    per_token, per_step = (length,), (steps,)
    return (
        ("token_ids", _INT32, per_token),
        ("response_mask", _BOOL, per_token),
        ("logprobs", _FLOAT32, per_token),
        ("step_spans", _INT32, (steps, 2)),
        ("step_versions", _INT32, per_step),
        ("step_seconds", _FLOAT32, per_step),
    )


def check_attempt(attempt: Any, spans: Spans, mask: bytes) -> None:
    """Raise unless the fields of a Trajectory agree with each other.

    `attempt`: a Trajectory, or whatever has its other fields; `mask`: a byte, 0 or 1, per token.
    """
    steps = len(spans)
    if steps < 1 or len(attempt.actions) != steps or len(attempt.observations) != steps + 1:
        raise RecordError(
            f"{steps} step spans, {len(attempt.actions)} actions and "
            f"{len(attempt.observations)} observations; K spans need K actions and K + 1 "
            "observations, K >= 1",
            field="step_spans",
        )
    _check_spans(spans, mask)
    if not abs(float(attempt.reward)) <= LARGEST_REWARD:  # NaN is not
        raise RecordError(
            f"reward is {attempt.reward}; it must lie within ±{LARGEST_REWARD:g}", field="reward"
        )
    if not -1 <= attempt.pivot < steps:
        raise RecordError(f"pivot {attempt.pivot} of {steps} steps", field="pivot")


def _check_spans(spans: Spans, mask: bytes) -> None:
    """Spans are in order and the mask is 1 inside them and nowhere else."""
    length, before = len(mask), 0
    pieces: list[bytes] = []
    for start, end in spans:
        if not before <= start <= end <= length:
            raise RecordError(
                f"step_spans: {start} to {end} overlaps another or reaches past the "
                f"sequence of {length} tokens",
                field="step_spans",
            )
        pieces += (b"\0" * (start - before), b"\1" * (end - start))
        before = end
    pieces.append(b"\0" * (length - before))
    if b"".join(pieces) != mask:
        raise RecordError("response_mask and step_spans disagree", field="response_mask")


def check_slot(result: Any, attempt: Any) -> None:
    """Raise unless the fields of a SlotResult agree with each other and with its trajectory.

    `result`, `attempt`: a SlotResult and its Trajectory, or whatever has their other fields.
    """
    if (result.status == "done") != (attempt is not None):
        raise RecordError("a slot has a trajectory exactly when it is done", field="status")
    if (result.status == "failed") != bool(result.cause):
        raise RecordError("a slot has a cause exactly when it failed", field="cause")
    if result.slot < 0:
        raise RecordError(f"slot {result.slot} is negative", field="slot")
    if attempt is not None and (attempt.role, attempt.slot) != (result.role, result.slot):
        raise RecordError(
            f"slot {(result.role, result.slot)} holds {(attempt.role, attempt.slot)}", field="slot"
        )


def _array(record: Any, name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    value = getattr(record, name)
    if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
        got = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value)
        raise RecordError(f"{name} is {got}; it must be {dtype}{shape}", field=name)

"""The records of attempts, reflections and explore groups.

Shapes: L tokens in a trajectory, K steps (K ≥ 1 turns of the policy). Steps count from 0. Records
are frozen. r3l.codec checks the types of fields when it reads a record. Every new record checks
that its arrays have the right dtypes and shapes, and that its fields agree with each other.
"""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, dataclass_transform, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from r3l.errors import RecordError
from r3l.text import LABEL_LIMIT, label, plain, plain_value, printable, shortened

Integer = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # of 64 bits
Int32 = np.ndarray[Any, np.dtype[np.int32]]
Float32 = np.ndarray[Any, np.dtype[np.float32]]
Bool = np.ndarray[Any, np.dtype[np.bool_]]

Role = Literal["base", "distilled"]
SlotStatus = Literal["done", "not_triggered", "failed"]
GroupState = Literal["leased", "filling", "complete", "drawn", "trained", "expired"]
Purpose = Literal["train", "eval"]
GROUP_STATES: tuple[GroupState, ...] = get_args(GroupState)
LARGEST_REWARD = 1e9  # limit of an attempt's |reward|; sums and powers of rewards stay finite
TASK_ID_LIMIT = 380  # bytes; with the tag of an evaluation it must fit a key of the store
TASK_LIMIT = 1 << 20  # bytes of one task
MOST_PARTS = 16  # of a reward
PART = re.compile(r"[A-Za-z0-9_]{1,40}")


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base class of all records and messages. It is frozen and refuses unknown fields."""


class Task(Record):
    """One query or one seeded environment instance. `task_id` is stable across runs. Raises
    RecordError if a value cannot be stored."""

    task_id: str
    env: str
    seed: Integer
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            task_id = plain(self.task_id, "its id", TASK_ID_LIMIT)
            if not task_id or "\0" in task_id:
                raise ValueError("its id is empty or holds a NUL")
            options = plain_value(self.options, "options")
            if (size := len(msgspec.msgpack.encode(options))) > TASK_LIMIT:
                raise ValueError(f"options have {size} bytes; the limit is {TASK_LIMIT}")
            known = {"task_id": task_id, "env": plain(self.env, "env"), "options": options}
        except ValueError as error:
            name = shortened(printable(str(self.task_id)), 80)
            raise RecordError(f"task {name!r}: {error}", field="options") from None
        for field, value in known.items():
            msgspec.structs.force_setattr(self, field, value)


class Segment(Record):
    """A further conversation of an attempt, with the fields of a Trajectory; see `Extra.segments`.

    `start`: the first step that is trained in this conversation. The steps before it are
    trained in an earlier conversation or in the retried attempt. `after` int32 [K]: how many steps
    of the main conversation came before each step; empty if not recorded.
    """

    token_ids: Int32
    logprobs: Float32
    step_spans: Int32
    step_versions: Int32
    step_newest_versions: Int32
    start: Integer = 0
    after: Int32 = msgspec.field(default_factory=lambda: np.zeros(0, np.int32))

    def __post_init__(self) -> None:
        steps = _check_steps(self)
        _check_array("after", self.after, "int32", (steps if len(self.after) else 0,))
        _check_spans(self.step_spans, len(self.token_ids))
        if not 0 <= self.start < steps:
            raise RecordError(
                f"start {self.start}: must be from 0 to {steps - 1} (the last step)", field="start"
            )


class Extra(Record):
    """Details of an attempt (K steps). Only some algorithms and metrics read them.

    `reward_parts`: named parts of the reward, each summed over the steps played for this attempt.
    `step_rewards` float32 [K]: on the scale of `reward`. `step_cut` bool [K]: whether the token
    budget cut off the response. Either array is empty if not recorded. `start`: `Segment.start` if
    the trajectory was made from a segment, else 0.

    `segments` and `tape` are only for attempts that an agent played. `segments`: further
    conversations, trained with the attempt's advantage. `tape`: all calls of the agent
    (r3l.views.tape).
    """

    reward_parts: dict[str, float] = msgspec.field(default_factory=dict)
    step_rewards: Float32 = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    step_cut: Bool = msgspec.field(default_factory=lambda: np.zeros(0, np.bool_))
    start: Integer = 0
    segments: tuple[Segment, ...] = ()
    tape: bytes = b""

    def __post_init__(self) -> None:
        _check_array("step_rewards", self.step_rewards, "float32", (len(self.step_rewards),))
        _check_array("step_cut", self.step_cut, "bool", (len(self.step_cut),))
        parts = self.reward_parts
        named = all(PART.fullmatch(name) for name in parts)
        if not named or len(parts) > MOST_PARTS or not all(map(math.isfinite, parts.values())):
            rule = f"at most {MOST_PARTS} finite numbers, with names of letters, digits and _"
            raise RecordError(f"reward_parts {parts!r:.200}: must be {rule}", field="reward_parts")


class Trajectory(Record):
    """One attempt as a single sequence of tokens, read or sampled, without guidance.

    `token_ids` int32 [L]. `logprobs` float32 [L]: from the distribution ∝ exp(logits /
    temperature), or ∝ exp(logits) for a greedy attempt; 0 outside responses. `step_spans` int32 [K,
    2]: (start, end) of each step's response. `step_versions`, `step_newest_versions` int32 [K]: the
    oldest and the newest policy version that sampled the step. `step_seconds` float32 [K]: the wall
    time of sampling.

    Slots are numbered from 0 in each role. A distilled attempt retries the base attempt in slot
    `parent` from step `pivot`. A base attempt has parent -1 and pivot -1. `actions[k]` is the
    policy's text at step k, and `observations[k]` is what the policy read before it. The last
    observation is the environment's last reaction. `finish` context_overflow: the full context cut
    off the last response or left no room for another. `faults`: errors of the environment that did
    not end the attempt. `temperature`: 0 if greedy.
    """

    role: Role
    slot: Integer
    token_ids: Int32
    logprobs: Float32
    step_spans: Int32
    step_versions: Int32
    step_newest_versions: Int32
    step_seconds: Float32
    reward: float
    system: str
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    parent: Integer = -1
    pivot: Integer = -1
    finish: str = "terminated"
    feedback: str = ""
    faults: tuple[str, ...] = ()
    temperature: float = 1.0
    extra: Extra = msgspec.field(default_factory=Extra)

    def __post_init__(self) -> None:
        steps = _check_steps(self)
        _check_array("step_seconds", self.step_seconds, "float32", (steps,))
        _check_attempt(self)
        _check_extra(self, self.extra)

    @property
    def num_steps(self) -> int:
        """The number of the policy's turns, K."""
        return len(self.step_spans)

    def responses_from(self, step: int) -> Bool:
        """Returns a mask (bool [L]) of the response tokens from `step` on. Step −1 counts as 0."""
        mask = np.zeros(len(self.token_ids), np.bool_)
        for start, end in self.step_spans[max(step, 0) :].tolist():
            mask[start:end] = True
        return mask

    @property
    def response_mask(self) -> Bool:
        """The sampled tokens, as a mask: bool [L]."""
        return self.responses_from(0)

    def conversations(self) -> list[Self]:
        """Returns this trajectory, and each of its segments as a trajectory without texts."""
        return [self, *(self._conversation(segment) for segment in self.extra.segments)]

    def _conversation(self, segment: Segment) -> Self:
        steps = len(segment.step_spans)
        return msgspec.structs.replace(
            self,
            token_ids=segment.token_ids,
            logprobs=segment.logprobs,
            step_spans=segment.step_spans,
            step_versions=segment.step_versions,
            step_newest_versions=segment.step_newest_versions,
            step_seconds=np.zeros(steps, np.float32),
            observations=("",) * (steps + 1),
            actions=("",) * steps,
            extra=Extra(start=segment.start),
        )

    @property
    def oldest_version(self) -> int:
        """The oldest version that sampled a step. Ignores steps before a conversation's `start`."""
        own = [int(self.step_versions[self.extra.start :].min())]
        return min(own + [int(s.step_versions[s.start :].min()) for s in self.extra.segments])

    @property
    def newest_version(self) -> int:
        """The newest version that sampled a step. Ignores steps before a conversation's `start`."""
        own = [int(self.step_newest_versions[self.extra.start :].max())]
        return max(
            own + [int(s.step_newest_versions[s.start :].max()) for s in self.extra.segments]
        )

    def versions_of(self, step: int) -> str:
        """Returns the policy versions that sampled a step, as text: "v3" or "v3 to v5"."""
        oldest, newest = self.step_versions[step], self.step_newest_versions[step]
        return f"v{oldest}" if oldest == newest else f"v{oldest} to v{newest}"

    @property
    def first_played(self) -> int:
        """The first new step. Earlier steps come from the base attempt or another conversation."""
        return max(self.pivot, self.extra.start)

    @property
    def cut_responses(self) -> int:
        """How many of this attempt's own responses the token budget cut off."""
        return int(self.extra.step_cut[self.first_played :].sum())

    @property
    def generated_tokens(self) -> int:
        """The number of tokens that were sampled for this attempt, without its prefix."""
        spans = [self.step_spans[self.first_played :]]
        spans += [segment.step_spans[segment.start :] for segment in self.extra.segments]
        return sum(int((each[:, 1] - each[:, 0]).sum()) for each in spans)


class ReflectionRecord(Record):
    """The policy's reflection on a base trajectory. `cause`: why the text is not usable
    (r3l.rollout.reflection.CAUSES), or "". `pivot`: the retry step named in the text, or -1."""

    text: str
    cause: str = ""
    outcome: str = ""
    pivot: Integer = -1
    tokens: Integer = 0
    version: Integer = 0
    seconds: float = 0.0


class AuxSample(Record):
    """A supervised sample. The policy learns the tokens that `response_mask` marks. `kind`:
    "reflect", "retry" or a name that an algorithm chose."""

    kind: str
    token_ids: Int32
    response_mask: Bool

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        _check_array("token_ids", self.token_ids, "int32", (length,))
        _check_array("response_mask", self.response_mask, "bool", (length,))


class SlotResult(Record):
    """The result of one group slot. A done slot has a trajectory. A failed slot has a cause and no
    reward. A slot is not_triggered if no retry was asked for."""

    role: Role
    slot: Integer
    status: SlotStatus
    cause: str = ""
    trajectory: Trajectory | None = None
    reflection: ReflectionRecord | None = None
    aux: tuple[AuxSample, ...] = ()

    def __post_init__(self) -> None:
        attempt = self.trajectory
        if (self.status == "done") != (attempt is not None):
            raise RecordError("done slots need a trajectory; others must have none", field="status")
        if (self.status == "failed") != bool(self.cause):
            raise RecordError("failed slots need a cause; others must have none", field="cause")
        check_cause(self.cause)
        if self.slot < 0:
            raise RecordError(f"slot {self.slot} is negative", field="slot")
        if attempt is not None and (attempt.role, attempt.slot) != (self.role, self.slot):
            raise RecordError(
                f"slot {(self.role, self.slot)} holds attempt {(attempt.role, attempt.slot)}",
                field="slot",
            )


class Recalled(Record):
    """An attempt of the stored group `group_id`. It joins a drawn group, whose id is `into`."""

    into: str
    group_id: str
    trajectory: Trajectory


class GroupPlan(Record):
    """The number of slots in a group. The group is complete once every slot has a result."""

    base: Integer
    distilled: Integer = 0

    def slots(self) -> Iterator[tuple[Role, int]]:
        """Yields every (role, slot) of the plan, base slots first."""
        yield from (("base", slot) for slot in range(self.base))
        yield from (("distilled", slot) for slot in range(self.distilled))

    def last_role(self, slot: int) -> Role:
        """Returns the role of a slot's last result: distilled if a retry is planned, else base."""
        return "distilled" if slot < self.distilled else "base"


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
    purpose: Purpose = "train"
    tag: str = ""
    actor: str = ""
    cause: str = ""
    times: dict[str, float] = msgspec.field(default_factory=dict)
    fingerprints: dict[Integer, str] = msgspec.field(default_factory=dict)

    @property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories of all done slots, base slots first."""
        ordered = sorted(self.results, key=lambda r: (r.role, r.slot))
        return [r.trajectory for r in ordered if r.trajectory is not None]

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """The rewards, float64 [G], in the order of `trajectories`."""
        return np.array([t.reward for t in self.trajectories], dtype=np.float64)

    @property
    def oldest_version(self) -> int:
        """The oldest policy version in the group; -1 if the group has no trajectories."""
        return min((t.oldest_version for t in self.trajectories), default=-1)

    @property
    def unresolved(self) -> list[tuple[Role, int]]:
        """The planned slots without a result."""
        have = {(r.role, r.slot) for r in self.results}
        return [slot for slot in self.plan.slots() if slot not in have]

    @property
    def generated_tokens(self) -> int:
        """The number of tokens sampled for the group, in attempts and reflections."""
        attempts = sum(t.generated_tokens for t in self.trajectories)
        return attempts + sum(r.reflection.tokens for r in self.results if r.reflection)


def check_cause(cause: str) -> None:
    """Raises RecordError unless `cause` is printable text of at most LABEL_LIMIT bytes."""
    if cause != label(cause):
        rule = f"at most {LABEL_LIMIT} bytes of printable text"
        raise RecordError(f"cause {cause[:80]!a}: must be {rule}", field="cause")


def _check_attempt(attempt: Trajectory) -> None:
    """Raises RecordError unless an attempt's fields agree with each other."""
    steps = attempt.num_steps
    if attempt.role not in ("base", "distilled"):
        raise RecordError(f"role is {attempt.role!r}; it must be base or distilled", field="role")
    if steps < 1 or len(attempt.actions) != steps or len(attempt.observations) != steps + 1:
        raise RecordError(
            f"{steps} step spans, {len(attempt.actions)} actions and "
            f"{len(attempt.observations)} observations; K spans need K actions and K + 1 "
            "observations, K >= 1",
            field="step_spans",
        )
    _check_spans(attempt.step_spans, len(attempt.token_ids))
    if not abs(float(attempt.reward)) <= LARGEST_REWARD:  # NaN is not
        raise RecordError(
            f"reward is {attempt.reward}; it must be within ±{LARGEST_REWARD:g}", field="reward"
        )
    if not 0 <= attempt.temperature < math.inf:
        raise RecordError(
            f"temperature is {attempt.temperature}; it must be 0 or more", field="temperature"
        )
    if (attempt.step_newest_versions < attempt.step_versions).any():
        raise RecordError(
            "a step's newest version is older than its oldest one", field="step_newest_versions"
        )


def _check_spans(step_spans: Int32, length: int) -> None:
    edges = np.array([0, *step_spans.ravel(), length], np.int64)
    if (np.diff(edges) < 0).any():
        raise RecordError(
            f"step_spans overlap or reach past the sequence of {length} tokens", field="step_spans"
        )


def _check_extra(attempt: Trajectory, extra: Extra) -> None:
    """Raises RecordError unless an attempt's details agree with its number of steps."""
    steps = attempt.num_steps
    for name, value in (("step_rewards", extra.step_rewards), ("step_cut", extra.step_cut)):
        if len(value) not in (0, steps):
            raise RecordError(f"{name} has {len(value)} values; it must have {steps}", field=name)
    for name, step, least in (("pivot", attempt.pivot, -1), ("start", extra.start, 0)):
        if not least <= step < steps:
            raise RecordError(
                f"{name} {step}: must be from {least} to {steps - 1} (the last step)", field=name
            )


def _check_steps(record: Segment | Trajectory) -> int:
    """Checks the arrays of tokens and steps. Returns the number of steps. Raises RecordError."""
    length, steps = len(record.token_ids), len(record.step_spans)
    _check_array("token_ids", record.token_ids, "int32", (length,))
    _check_array("logprobs", record.logprobs, "float32", (length,))
    _check_array("step_spans", record.step_spans, "int32", (steps, 2))
    _check_array("step_versions", record.step_versions, "int32", (steps,))
    _check_array("step_newest_versions", record.step_newest_versions, "int32", (steps,))
    return steps


def _check_array(name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> None:
    if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
        got = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value)
        raise RecordError(f"{name} is {got}; it must be {dtype}{shape}", field=name)

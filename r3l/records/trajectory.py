"""The record of one attempt. Shapes: L tokens, K steps (K ≥ 1 turns of the policy)."""

import math
from typing import Self

import msgspec
import numpy as np

from r3l.errors import RecordError
from r3l.records.record import (
    LARGEST_REWARD,
    Bool,
    Float32,
    Int32,
    Integer,
    Record,
    Role,
    check_array,
    check_numbers,
    role_of,
)


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
        check_array("after", self.after, "int32", (steps if len(self.after) else 0,))
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
    (r3l.views.tape). `scores`: named numbers that somebody gave the attempt after it was played.
    """

    reward_parts: dict[str, float] = msgspec.field(default_factory=dict)
    step_rewards: Float32 = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    step_cut: Bool = msgspec.field(default_factory=lambda: np.zeros(0, np.bool_))
    start: Integer = 0
    segments: tuple[Segment, ...] = ()
    tape: bytes = b""
    scores: dict[str, float] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_array("step_rewards", self.step_rewards, "float32", (len(self.step_rewards),))
        check_array("step_cut", self.step_cut, "bool", (len(self.step_cut),))
        check_numbers("reward_parts", self.reward_parts)
        check_numbers("scores", self.scores)


class Shown(Record):
    """What the policy read in place of an attempt's stored tokens: the context with guidance.

    The policy read token_ids[:keep] + tokens + token_ids[resume:]. `tokens` int32 [M]. The stored
    tokens before `resume` were not sampled in this attempt.
    """

    tokens: Int32
    keep: Integer
    resume: Integer

    def __post_init__(self) -> None:
        check_array("tokens", self.tokens, "int32", (len(self.tokens),))
        if not 0 <= self.keep <= self.resume:
            raise RecordError(
                f"keep {self.keep}, resume {self.resume}: must be 0 <= keep <= resume", field="keep"
            )


class Origin(Record):
    """A step of a stored attempt, from which another attempt started."""

    group_id: str
    slot: Integer
    step: Integer


class Trajectory(Record):
    """One attempt as a single sequence of tokens, read or sampled, without guidance.

    `token_ids` int32 [L]. `logprobs` float32 [L]: from the distribution ∝ exp(logits /
    temperature), or ∝ exp(logits) for a greedy attempt; 0 outside responses; in an imported attempt
    all 0 if they are unknown (`has_logprobs`). `step_spans` int32 [K, 2]: (start, end) of each
    step's response. `step_versions`, `step_newest_versions` int32 [K]: the oldest and the newest
    policy version that sampled the step; -1 if no policy of this run did. `step_seconds` float32
    [K]: the wall time of sampling.

    `slot`: the attempt's place in its group, from 0. `of`: the slot of the attempt that this one
    retries, or -1. `pivot`: the first step that was played; the steps before it come from the
    retried attempt or from `origin`, a stored attempt of another group. -1: all steps were played.
    `reflection`: the name of the reflection that advised it. `shown`: what the policy read, if it
    read other tokens than the stored ones. `source`: where an imported attempt comes from; empty if
    an actor played it.

    `actions[k]` is the policy's text at step k, and `observations[k]` is what the policy read
    before it. The last observation is the environment's last reaction. `finish` context_overflow:
    the full context cut off the last response or left no room for another. `faults`: errors of the
    environment that did not end the attempt. `temperature`: 0 if greedy.
    """

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
    of: Integer = -1
    pivot: Integer = -1
    origin: Origin | None = None
    reflection: str = ""
    shown: Shown | None = None
    source: str = ""
    finish: str = "terminated"
    feedback: str = ""
    faults: tuple[str, ...] = ()
    temperature: float = 1.0
    extra: Extra = msgspec.field(default_factory=Extra)

    def __post_init__(self) -> None:
        steps = _check_steps(self)
        check_array("step_seconds", self.step_seconds, "float32", (steps,))
        _check_attempt(self)
        _check_extra(self, self.extra)

    @property
    def role(self) -> Role:
        """The role: "distilled" if it retries another attempt of its group, else "base"."""
        return role_of(self.of)

    @property
    def num_steps(self) -> int:
        """The number of the policy's turns, K."""
        return len(self.step_spans)

    @property
    def has_logprobs(self) -> bool:
        """Whether the log-probabilities of sampling are known. They are unknown if the attempt was
        imported and they are 0 at all its responses."""
        return not self.source or bool(self.logprobs[self.response_mask].any())

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

    def as_shown(self, shown: Shown | None = None) -> tuple[Int32, Bool]:
        """Returns the main conversation as the policy read it: token ids, int32 [M], and a mask of
        the tokens that were sampled in this attempt, bool [M]. With `shown`, returns what the
        policy would have read with these tokens in place."""
        shown = shown or self.shown
        mask = self.responses_from(self.first_played)
        if shown is None:
            return self.token_ids, mask
        before = np.concatenate([self.token_ids[: shown.keep], shown.tokens])
        ids = np.concatenate([before, self.token_ids[shown.resume :]])
        return ids, np.concatenate([np.zeros(len(before), np.bool_), mask[shown.resume :]])

    def as_read(self) -> Self:
        """Returns this attempt with the tokens that the policy read, including those of `shown`, as
        its own tokens. Its log-probabilities then belong to these tokens."""
        shown = self.shown
        if shown is None:
            return self
        kept, resume, given = int(shown.keep), int(shown.resume), len(shown.tokens)
        between = [self.logprobs[:kept], np.zeros(given, np.float32), self.logprobs[resume:]]
        spans, more = self.step_spans, kept + given - resume
        moved = np.where(spans >= resume, spans + more, np.minimum(spans, kept)).astype(np.int32)
        return msgspec.structs.replace(
            self,
            token_ids=self.as_shown()[0],
            logprobs=np.concatenate(between),
            step_spans=moved,
            shown=None,
        )

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
            pivot=-1,
            shown=None,
            extra=Extra(start=segment.start),
        )

    @property
    def oldest_version(self) -> int:
        """The oldest version that sampled a step for this group. Ignores steps of `origin`, and
        those before a conversation's `start`."""
        own = [int(self.step_versions[self._first_of_group :].min())]
        return min(own + [int(s.step_versions[s.start :].min()) for s in self.extra.segments])

    @property
    def newest_version(self) -> int:
        """The newest version that sampled a step for this group. Ignores steps of `origin`, and
        those before a conversation's `start`."""
        own = [int(self.step_newest_versions[self._first_of_group :].max())]
        return max(
            own + [int(s.step_newest_versions[s.start :].max()) for s in self.extra.segments]
        )

    @property
    def _first_of_group(self) -> int:
        """The first step that was not copied from another group or another conversation."""
        return self.extra.start if self.origin is None else max(self.pivot, self.extra.start)

    def versions_of(self, step: int) -> str:
        """Returns the policy versions that sampled a step, as text: "v3", "v3 to v5", or "v?" if no
        policy of this run did."""
        oldest, newest = self.step_versions[step], self.step_newest_versions[step]
        if newest < 0:
            return "v?"
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


def _check_attempt(attempt: Trajectory) -> None:
    """Raises RecordError unless an attempt's fields agree with each other."""
    steps = attempt.num_steps
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
    if attempt.shown is not None and attempt.shown.resume > len(attempt.token_ids):
        raise RecordError(
            f"shown: resumes at token {attempt.shown.resume} of {len(attempt.token_ids)}",
            field="shown",
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
    check_array("token_ids", record.token_ids, "int32", (length,))
    check_array("logprobs", record.logprobs, "float32", (length,))
    check_array("step_spans", record.step_spans, "int32", (steps, 2))
    check_array("step_versions", record.step_versions, "int32", (steps,))
    check_array("step_newest_versions", record.step_newest_versions, "int32", (steps,))
    if (record.step_newest_versions < record.step_versions).any():
        raise RecordError(
            "a step's newest version is older than its oldest one", field="step_newest_versions"
        )
    return steps

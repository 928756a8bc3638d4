"""One attempt: the policy and the environment take turns until the attempt ends.

    observation ─► prompt tokens ─► policy.sample ─► action text ─► env.step ─► observation …

Recorded rewards are divided by the environment's success threshold, so 1.0 is full success.

A retry starts from the state before step k*, and its reward includes the steps before k*. The
policy reads the guidance, but the recorded sequence leaves it out (r3l.records.Shown).
"""

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from r3l.errors import EngineFailed, EnvironmentFailed, ReplayDiverged
from r3l.records import (
    LARGEST_REWARD,
    MOST_PARTS,
    Extra,
    Float32,
    Origin,
    Shown,
    Task,
    Trajectory,
)
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_calls import fault_in, guarded, parts_in, read_reset, read_step, read_text
from r3l.rollout.env_interface import Environment, StepAnswer, canonical
from r3l.rollout.policy_interface import Policy, Sample, SampleParams

REWARD_DECIMALS = 12
"""Rewards are rounded to this many decimals, so that ten step rewards of 0.1 add up to exactly 1,
a full success."""
ParamsOfStep = Callable[[int], SampleParams]
"""Returns the sampling parameters of step k. Only the seed depends on k."""


@dataclass
class Tokens:
    """A token sequence under construction. `mask`: True for sampled tokens. The last four lists
    have one entry for each response. `versions`: the oldest policy version that sampled the
    response. `cuts`: whether the token budget ended the response."""

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    newest_versions: list[int] = field(default_factory=list)
    cuts: list[bool] = field(default_factory=list)

    def add_read(self, ids: Sequence[int]) -> None:
        """Appends tokens that the policy only reads."""
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def add_response(self, sample: Sample) -> None:
        """Appends a response of the policy."""
        start = len(self.ids)
        self.ids += sample.token_ids
        self.mask += [True] * len(sample.token_ids)
        self.logprobs += sample.logprobs
        self.spans.append((start, len(self.ids)))
        self.versions.append(sample.version)
        self.newest_versions.append(sample.newest_version)
        self.cuts.append(sample.finish_reason == "length")

    def record_fields(self) -> dict[str, Any]:
        """Returns the fields that a Trajectory and a Segment have in common."""
        return {
            "token_ids": np.array(self.ids, np.int32),
            "logprobs": np.array(self.logprobs, np.float32),
            "step_spans": np.array(self.spans, np.int32).reshape(-1, 2),
            "step_versions": np.array(self.versions, np.int32),
            "step_newest_versions": np.array(self.newest_versions, np.int32),
        }


@dataclass
class Attempt:
    """An attempt in progress. `tokens`: what the trajectory keeps. `shown`: what the policy reads
    in place of some of these, if there is guidance. `rewards`: the step rewards, not divided by
    `threshold`. `snapshots[k]`: the state before step k."""

    task: Task
    system: str
    tokens: Tokens
    observations: list[str]
    shown: Shown | None = None
    actions: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    snapshots: list[bytes] = field(default_factory=list)
    threshold: float = 1.0
    finish: str = ""
    feedback: str = ""
    faults: list[str] = field(default_factory=list)
    temperature: float = 1.0
    reward_parts: dict[str, float] = field(default_factory=dict)

    @property
    def read(self) -> list[int]:
        """The tokens that the policy reads: the attempt so far, with its guidance."""
        ids, shown = self.tokens.ids, self.shown
        if shown is None:
            return ids
        return [*ids[: shown.keep], *shown.tokens.tolist(), *ids[shown.resume :]]

    @property
    def reward(self) -> float:
        """The reward R(τ): the sum of the step rewards, divided by the success threshold."""
        return round(math.fsum(self.rewards) / self.threshold, REWARD_DECIMALS)

    def trajectory(
        self,
        slot: int,
        *,
        of: int = -1,
        pivot: int = -1,
        origin: Origin | None = None,
        reflection: str = "",
    ) -> Trajectory:
        """Returns a record of the attempt so far."""
        return Trajectory(
            slot=slot,
            **self.tokens.record_fields(),
            step_seconds=np.array(self.seconds, dtype=np.float32),
            reward=self.reward,
            system=self.system,
            observations=tuple(self.observations),
            actions=tuple(self.actions),
            of=of,
            pivot=pivot,
            origin=origin,
            reflection=reflection,
            shown=self.shown,
            finish=self.finish,
            feedback=self.feedback,
            faults=tuple(self.faults),
            temperature=self.temperature,
            extra=Extra(
                reward_parts=dict(list(self.reward_parts.items())[:MOST_PARTS]),
                step_rewards=(np.array(self.rewards) / self.threshold).astype(np.float32),
                step_cut=np.array(self.tokens.cuts, dtype=np.bool_),
            ),
        )


async def start(task: Task, chat: ChatFormat, env: Environment, context: str = "") -> Attempt:
    """Resets `env` to the task and opens the conversation. `context`: text that the policy reads
    below the system prompt, and that the record leaves out. Raises EnvironmentFailed."""
    system = env.spec.system_prompt
    first = await _reset(env, task)
    tokens = Tokens()
    tokens.add_read(chat.open(system, first))
    return Attempt(
        task,
        system,
        tokens,
        observations=[first],
        shown=_opened(chat, system, context, first, len(tokens.ids)) if context else None,
        threshold=env.spec.success_threshold,
    )


async def branch(
    base: Trajectory,
    step: int,
    task: Task,
    chat: ChatFormat,
    env: Environment,
    guidance: str = "",
    played: Attempt | None = None,
) -> Attempt:
    """Opens a retry that keeps the steps of `base` before `step`. Puts `env` back to that point.
    `played`: the attempt that became `base`.

    At step 0 the guidance joins the system prompt. At later steps it is a separate message after
    the prefix. The prefix stays unchanged, so the engine finds it in its prefix cache. Raises
    ReplayDiverged, EnvironmentFailed.
    """
    rewards = await restore(env, task, base, step, played)
    prefix_end = _prefix_end(chat, base, step)
    tokens = Tokens(
        ids=base.token_ids[:prefix_end].tolist(),
        mask=base.response_mask[:prefix_end].tolist(),
        logprobs=base.logprobs[:prefix_end].tolist(),
        spans=[(int(a), int(b)) for a, b in base.step_spans[:step]],
        versions=base.step_versions[:step].tolist(),
        newest_versions=base.step_newest_versions[:step].tolist(),
        cuts=base.extra.step_cut[:step].tolist() or [False] * step,
    )
    return Attempt(
        task,
        base.system,
        tokens,
        observations=list(base.observations[: step + 1]),
        shown=advised(chat, base, step, guidance) if guidance else None,
        actions=list(base.actions[:step]),
        seconds=base.step_seconds[:step].tolist(),
        rewards=rewards,
        snapshots=[] if played is None else played.snapshots[:step],
        threshold=env.spec.success_threshold,
    )


def advised(chat: ChatFormat, base: Trajectory, step: int, guidance: str) -> Shown:
    """Returns how `base` reads with guidance that is given before its step `step`."""
    end = _prefix_end(chat, base, step)
    if step == 0:
        return _opened(chat, base.system, guidance, base.observations[0], end)
    return Shown(np.array(chat.guidance(guidance), np.int32), end, end)


def _prefix_end(chat: ChatFormat, base: Trajectory, step: int) -> int:
    """Returns the number of tokens before the prompt of `step`."""
    if step == base.num_steps:
        return len(base.token_ids)
    return int(base.step_spans[step, 0]) - len(chat.prompt_ids)


def _opened(chat: ChatFormat, system: str, context: str, first: str, resume: int) -> Shown:
    """Returns the opening of a conversation with `context` below the system prompt."""
    ids = chat.open(f"{system}\n{context}".strip(), first)
    return Shown(np.array(ids, np.int32), 0, resume)


async def play(
    attempt: Attempt,
    policy: Policy,
    env: Environment,
    params: ParamsOfStep,
    after_step: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Plays `attempt` to its end: terminated, truncated, step_limit or context_overflow. Awaits
    `after_step` after every step but the last. Raises EnvironmentFailed, EngineFailed."""
    chat, take_snapshot = policy.chat, getattr(env, "snapshot", None)
    first = len(attempt.actions)
    while not attempt.finish:
        if take_snapshot is not None:
            attempt.snapshots.append(await guarded(take_snapshot))
        attempt.tokens.add_read(chat.prompt_ids)
        began = time.monotonic()
        asked = params(len(attempt.actions))
        attempt.temperature = asked.temperature
        sample = await policy.sample(attempt.read, asked)
        if not sample.token_ids:
            attempt.finish = "context_overflow"
            break
        attempt.tokens.add_response(sample)
        attempt.seconds.append(time.monotonic() - began)
        action = chat.text(sample.token_ids)
        observation, reward, terminated, truncated, info = await _step(env, action)
        attempt.actions.append(action)
        attempt.observations.append(observation)
        attempt.rewards.append(reward)
        if fault := fault_in(info):
            attempt.faults.append(fault)
        for name, value in parts_in(info).items():
            attempt.reward_parts[name] = attempt.reward_parts.get(name, 0.0) + value
        attempt.finish = _finish(attempt, env, sample, terminated, truncated)
        if not attempt.finish:
            attempt.tokens.add_read(chat.close(sample.token_ids))
            attempt.tokens.add_read(chat.turn("user", observation))
            if after_step is not None:
                await after_step()
    if len(attempt.actions) == first:
        raise EngineFailed(
            f"the prompt of step {first} fills the whole context", cause="context_overflow"
        )
    if not abs(attempt.reward) <= LARGEST_REWARD:
        raise EnvironmentFailed(
            f"{env.spec.name}: the rewards of an attempt sum to {attempt.reward}; the sum must be "
            f"within ±{LARGEST_REWARD:g}",
            cause="bad_reward",
        )
    attempt.feedback = await _feedback(env)


async def restore(
    env: Environment, task: Task, base: Trajectory, step: int, played: Attempt | None = None
) -> list[float]:
    """Puts `env` back to the state before `step`. Uses a snapshot of `played`, or else a checked
    replay of `base`. Returns the earlier rewards. Raises ReplayDiverged, EnvironmentFailed."""
    first = await _reset(env, task)
    put_back = getattr(env, "restore", None)
    if put_back is not None and played is not None and len(played.snapshots) > step:
        state = played.snapshots[step]
        await guarded(lambda: put_back(state))
        return played.rewards[:step]
    if base.system != env.spec.system_prompt:  # of an attempt that an earlier run stored
        raise ReplayDiverged(
            f"{env.spec.name}: the system prompt differs on replay", cause="replay_diverged"
        )
    _same(env, base.observations[0], first, 0)
    rewards = []
    for k in range(step):
        observation, reward, terminated, truncated, _ = await _step(env, base.actions[k])
        _same(env, base.observations[k + 1], observation, k + 1)
        if terminated or truncated:
            raise ReplayDiverged(
                f"{env.spec.name}: ends at step {k} on replay", cause="replay_diverged", step=k
            )
        rewards.append(reward)
    return rewards


async def regraded(env: Environment, task: Task, attempt: Trajectory) -> Trajectory:
    """Replays a recorded attempt in a corrected environment. Returns it with the new reward, reward
    parts, step rewards, last observation, finish, feedback, faults and scores.

    Raises ReplayDiverged (fact `step`) unless the environment shows everything that the policy
    read, and ends the attempt at its last action. Raises EnvironmentFailed.
    """
    spec, last = env.spec, attempt.num_steps - 1
    if spec.system_prompt != attempt.system:
        raise _diverged(env, "its system prompt has changed", 0)
    _same(env, attempt.observations[0], await _reset(env, task), 0)
    rewards, parts, scores = list[float](), dict[str, float](), dict[str, float]()
    faults, ended = list[str](), ""
    for k, action in enumerate(attempt.actions):
        observation, reward, terminated, truncated, info = await _step(env, action)
        rewards.append(reward)
        ended = "terminated" if terminated else "truncated" if truncated else ""
        if k < last:
            _same(env, attempt.observations[k + 1], observation, k + 1)
            if ended:
                raise _diverged(env, f"it ends at step {k}, before the last step {last}", k)
        if k >= attempt.first_played:
            faults += [fault] if (fault := fault_in(info)) else []
            for name, value in parts_in(info).items():
                parts[name] = parts.get(name, 0.0) + value
        scores |= parts_in(info, "scores")
    if attempt.finish == "context_overflow" or (attempt.finish == "step_limit" and not ended):
        ended = attempt.finish
    if not ended:
        raise _diverged(env, f"it continues after the last step {last}", last)
    return judged(
        replace(attempt, finish=ended, faults=tuple(faults)),
        round(math.fsum(rewards) / spec.success_threshold, REWARD_DECIMALS),
        await _feedback(env),
        parts=dict(list(parts.items())[:MOST_PARTS]),
        scores=scores,
        last=observation,
        step_rewards=(np.array(rewards) / spec.success_threshold).astype(np.float32),
    )


def judged(
    attempt: Trajectory,
    reward: float,
    feedback: str,
    *,
    parts: dict[str, float],
    scores: dict[str, float],
    last: str,
    step_rewards: Float32 | None = None,
) -> Trajectory:
    """Returns an attempt with a different judgement. `last`: the last observation. `scores`: added
    to those of the attempt. `step_rewards`: None to keep those of the attempt."""
    extra = replace(attempt.extra, reward_parts=parts, scores=attempt.extra.scores | scores)
    if step_rewards is not None:
        extra = replace(extra, step_rewards=step_rewards)
    return replace(
        attempt,
        reward=reward,
        observations=(*attempt.observations[:-1], last),
        feedback=feedback,
        extra=extra,
    )


async def _feedback(env: Environment) -> str:
    """Asks an environment for its closing remark; "" if it has none."""
    speak = getattr(env, "feedback", None)
    said = None if speak is None else await guarded(speak)
    return "" if said is None else read_text(env.spec.name, "feedback", said)


def _diverged(env: Environment, how: str, step: int) -> ReplayDiverged:
    return ReplayDiverged(f"{env.spec.name}: {how}", cause="replay_diverged", step=step)


def _finish(
    attempt: Attempt, env: Environment, sample: Sample, terminated: bool, truncated: bool
) -> str:
    if sample.finish_reason == "overflow":  # also if it ended the attempt
        return "context_overflow"
    if terminated:
        return "terminated"
    if truncated:
        return "truncated"
    return "step_limit" if len(attempt.actions) >= env.spec.max_steps else ""


def _same(env: Environment, recorded: str, replayed: str, step: int) -> None:
    match env.spec.deterministic:
        case "exact":
            same = recorded == replayed
        case "canonical":
            same = canonical(recorded) == canonical(replayed)
        case _:
            raise ReplayDiverged(
                f"{env.spec.name}: no snapshot of this step, and replay is not deterministic",
                cause="not_replayable",
            )
    if not same:
        raise ReplayDiverged(
            f"{env.spec.name}: observation {step} differs on replay",
            cause="replay_diverged",
            step=step,
            recorded=recorded[:500],
            replayed=replayed[:500],
        )


async def _reset(env: Environment, task: Task) -> str:
    answer = await guarded(lambda: env.reset(seed=task.seed, options=dict(task.options)))
    return read_reset(env.spec.name, answer)[0]


async def _step(env: Environment, action: str) -> StepAnswer:
    answer = await guarded(lambda: env.step(action))
    return read_step(env.spec.name, answer)

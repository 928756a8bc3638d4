"""Samples one explore group (R³L, arXiv 2601.03715).

For every base slot, concurrently:

    base attempt ─► reflection ─► triggers a retry? ── no ─► slot not_triggered
                                        │ yes
                                        ▼
             environment back to k*, guidance shown, played to the end
                                        │
                                        ▼
             distilled trajectory (guidance removed) + samples of a verified correction
"""

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from r3l.algorithms.advantages import SUCCESS
from r3l.algorithms.algorithm import Exploration
from r3l.config import RunConfig
from r3l.errors import EnvironmentFailed, EpisodeError, ReflectionError
from r3l.records import (
    AuxSample,
    GroupPlan,
    ReflectionRecord,
    SlotResult,
    SlotStatus,
    Task,
    Trajectory,
)
from r3l.rollout import reflection
from r3l.rollout.attempt import Attempt, ParamsOfStep, Tokens, branch, play, start
from r3l.rollout.env_calls import guarded
from r3l.rollout.env_interface import Environment, EnvSpec, Playable, PlayedByAgent, Retry
from r3l.rollout.partial import Progress, conversation
from r3l.rollout.policy_interface import Policy, SampleParams
from r3l.rollout.prompts import Prompts

log = logging.getLogger(__name__)

Emit = Callable[[SlotResult], Awaitable[SlotResult]]
MakeEnv = Callable[[], Playable]
OnFailure = Callable[[EpisodeError], None]


async def explore_group(
    task: Task,
    policy: Policy,
    make_env: MakeEnv,
    config: RunConfig,
    *,
    seed: int | None = None,
    plan: GroupPlan | None = None,
    accepted: Sequence[SlotResult] = (),
    emit: Emit | None = None,
    progress: Progress | None = None,
    on_failure: OnFailure = lambda error: None,
    priority: int = 0,
) -> list[SlotResult]:
    """Explores a group and returns one result per slot of its plan.

    `emit` stores each result as soon as it exists, and returns what is stored. A refused result is
    stored as failed and gets no retry. `accepted`: results that earlier actors left. `progress`:
    finds and saves partial attempts. `seed` makes sampling repeatable. The lowest `priority` is
    served first. If an attempt fails, only its slot fails, and `on_failure` is called. Any other
    error ends the group.
    """
    algorithm = config.algorithm.build()
    explorer = _Explorer(
        task,
        policy,
        make_env,
        config,
        algorithm.exploration,
        plan or algorithm.plan(),
        list(accepted),
        seed=seed,
        emit=emit,
        progress=progress or Progress(),
        on_failure=on_failure,
        priority=priority,
    )
    try:
        async with asyncio.TaskGroup() as slots:
            for slot in range(explorer.plan.base):
                slots.create_task(explorer.explore_slot(slot))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return explorer.results


@dataclass(frozen=True)
class Diagnosis:
    """The policy's view of an attempt. `asked`: the conversation with the reflection. `pivot`: the
    step to retry from, or -1. `guidance`: text for the retry."""

    thought: ReflectionRecord
    asked: Tokens
    pivot: int = -1
    guidance: str = ""


@dataclass
class _Explorer:
    task: Task
    policy: Policy
    make_env: MakeEnv
    config: RunConfig
    exploration: Exploration
    plan: GroupPlan
    results: list[SlotResult]
    seed: int | None
    emit: Emit | None
    progress: Progress
    on_failure: OnFailure
    priority: int
    played: dict[int, Attempt] = field(default_factory=dict)

    async def explore_slot(self, slot: int) -> None:
        """Plays a base attempt and then its retry. Skips an attempt with an accepted result."""
        base = self._accepted("base", slot)
        if base is None:
            base = await self._done(await self._base(slot))
        if slot < self.plan.distilled and self._accepted("distilled", slot) is None:
            await self._done(await self._distilled(slot, base))

    async def _base(self, slot: int) -> SlotResult:
        try:
            async with self._environment() as env:
                temperature = self.config.actor.temperature
                params = self._step_params(env.spec, "base", slot, temperature)
                if isinstance(env, PlayedByAgent):
                    return await self._by_agent(slot, env, params)
                attempt = await self.progress.resume(
                    "base", slot, self.task, self.policy.chat, env, temperature
                ) or await start(self.task, self.policy.chat, env)
                save = self.progress.saving(attempt, env, lambda: _base_result(slot, attempt))
                await play(attempt, self.policy, env, params, save)
        except EpisodeError as error:
            self.on_failure(error)
            return SlotResult("base", slot, "failed", cause=error.cause)
        if len(attempt.snapshots) >= len(attempt.actions):  # else they lack the first steps
            self.played[slot] = attempt
        return _base_result(slot, attempt)

    async def _by_agent(self, slot: int, env: PlayedByAgent, params: ParamsOfStep) -> SlotResult:
        def result(played: Trajectory) -> SlotResult:
            return SlotResult("base", slot, "done", trajectory=played)

        left = self.progress.find("base", slot)
        played, _ = await env.play_with_agent(
            self.task,
            slot,
            params,
            left=None if left is None else left.trajectory,
            offer=lambda made, seconds: self.progress.offer(lambda: result(made()), seconds),
            retried=slot < self.plan.distilled,
        )
        return result(played)

    async def _distilled(self, slot: int, base: SlotResult) -> SlotResult:
        if base.trajectory is None:
            return SlotResult("distilled", slot, "failed", cause="no_base")
        attempt, exploration = base.trajectory, self.exploration
        if exploration.reflect_on == "failures" and attempt.reward >= SUCCESS:
            return SlotResult("distilled", slot, "not_triggered")
        thought: ReflectionRecord | None = None
        try:
            async with self._environment() as env:
                diagnosis = await self._diagnose(slot, attempt, env.spec)
                thought = diagnosis.thought
                if diagnosis.pivot < 0:
                    recognised = thought.outcome == "success" and attempt.reward >= SUCCESS
                    praised = exploration.aux and exploration.praise and recognised
                    aux = (_reflection_sample(diagnosis),) if praised else ()
                    return _resolved(slot, "not_triggered", thought, aux)
                if self.progress.find("distilled", slot) is None:
                    asked = (_reflection_sample(diagnosis),)
                    reflected = _resolved(slot, "not_triggered", thought, asked)
                    await self.progress.offer(lambda: reflected, thought.seconds)
                return await self._retry(slot, attempt, diagnosis, env)
        except EpisodeError as error:
            self.on_failure(error)
            return SlotResult("distilled", slot, "failed", cause=error.cause, reflection=thought)

    async def _diagnose(self, slot: int, base: Trajectory, spec: EnvSpec) -> Diagnosis:
        """Asks the policy what went wrong. Decides whether to retry and from which step."""
        exploration, prompts = self.exploration, Prompts(spec.prompts)
        critique = exploration.guidance == "critique"
        question = prompts.question("critique" if critique else "reflect", base)
        thought, asked, complete = await self._ask(slot, question, base.num_steps)
        if critique:
            return Diagnosis(thought, asked, 0, prompts.critique_guidance(thought.text))
        try:
            parsed = reflection.parse(thought.text, base.num_steps, truncated=not complete)
        except ReflectionError as error:
            return Diagnosis(replace(thought, cause=error.cause), asked)
        named = -1 if parsed.retry_from_step is None else parsed.retry_from_step
        thought = replace(thought, outcome=parsed.trajectory_outcome, pivot=named)
        triggered = parsed.triggers_retry(base.num_steps)
        pivot = self._pivot(named, base.num_steps) if triggered else -1
        guidance = "" if exploration.guidance == "none" else prompts.guidance(parsed)
        return Diagnosis(thought, asked, pivot, guidance)

    def _pivot(self, named: int, num_steps: int) -> int:
        """Returns the step to retry from. `named`: the step that the reflection names."""
        if self.exploration.from_start:
            return 0
        return min(max(named + self.exploration.pivot_shift, 0), num_steps - 1)

    async def _ask(
        self, slot: int, question: tuple[str, str], num_steps: int
    ) -> tuple[ReflectionRecord, Tokens, bool]:
        """Samples a reflection, or takes the one that an earlier actor left. Returns (reflection,
        conversation, whether the reflection is complete)."""
        left = self.progress.find("distilled", slot)
        if left is not None and left.reflection is not None and left.aux:
            return left.reflection, conversation(left.aux[0]), True
        chat, settings, exploration = self.policy.chat, self.config.actor, self.exploration
        schema = reflection.json_schema(num_steps, outcome_first=exploration.outcome_first)
        asked = Tokens()
        asked.given(chat.open(*question))
        asked.given(chat.prompt_ids)
        params = SampleParams(
            max_tokens=settings.max_reflection_tokens,
            temperature=settings.reflect_temperature,
            seed=self._seed("reflect", slot),
            json_schema=schema if exploration.constrained else None,
            priority=self.priority,
        )
        began = time.monotonic()
        sample = await self.policy.sample(asked.ids, params)
        asked.sampled(sample)
        thought = ReflectionRecord(
            text=chat.text(sample.token_ids),
            tokens=len(sample.token_ids),
            version=sample.version,
            seconds=time.monotonic() - began,
        )
        return thought, asked, sample.finish_reason == "stop"

    async def _retry(
        self, slot: int, base: Trajectory, diagnosis: Diagnosis, env: Playable
    ) -> SlotResult:
        params = self._step_params(env.spec, "distilled", slot, base.temperature)

        def result(retry: Trajectory, guided: AuxSample) -> SlotResult:
            aux: tuple[AuxSample, ...] = ()
            strict = self.exploration.verified_requires_success
            helps = self.exploration.aux and verified(base, retry, requires_success=strict)
            if helps or not retry.finish:  # a partial one is continued with them
                aux = (_reflection_sample(diagnosis), guided)
            return _resolved(slot, "done", diagnosis.thought, aux, retry)

        if isinstance(env, PlayedByAgent):
            asked = Retry(base, diagnosis.pivot, diagnosis.guidance)
            return result(*await env.play_with_agent(self.task, slot, params, asked))
        attempt, guided_from = await self._retried(slot, base, diagnosis, env)

        def played() -> tuple[Trajectory, AuxSample]:
            retry = attempt.trajectory("distilled", slot, parent=slot, pivot=diagnosis.pivot)
            ids, mask = attempt.shown.arrays()
            mask[:guided_from] = False  # only tokens sampled under guidance are trained
            return retry, AuxSample("retry", ids, mask)

        save = self.progress.saving(attempt, env, lambda: result(*played()))
        await play(attempt, self.policy, env, params, save)
        return result(*played())

    async def _retried(
        self, slot: int, base: Trajectory, diagnosis: Diagnosis, env: Environment
    ) -> tuple[Attempt, int]:
        """Continues the retry that an earlier actor left, or opens a new one. Returns (retry,
        number of leading tokens to mask out)."""
        chat, heat = self.policy.chat, base.temperature
        attempt = await self.progress.resume("distilled", slot, self.task, chat, env, heat)
        if attempt is not None:
            return attempt, 0  # its mask begins there
        attempt = await branch(
            base, diagnosis.pivot, self.task, chat, env, diagnosis.guidance, self.played.get(slot)
        )
        return attempt, len(attempt.shown.ids)

    def _step_params(self, spec: EnvSpec, role: str, slot: int, temperature: float) -> ParamsOfStep:
        budget = self.config.actor.max_response_tokens or spec.max_response_tokens

        def params(step: int) -> SampleParams:
            seed = self._seed(role, slot, step)
            stop, priority = tuple(spec.stop), self.priority
            return SampleParams(budget, temperature, seed, stop=stop, priority=priority)

        return params

    def _seed(self, *path: object) -> int | None:
        """Returns a 32-bit sampling seed, computed from the group's seed and from `path`."""
        return None if self.seed is None else zlib.crc32(repr((self.seed, *path)).encode())

    def _accepted(self, role: str, slot: int) -> SlotResult | None:
        return next((r for r in self.results if (r.role, r.slot) == (role, slot)), None)

    async def _done(self, result: SlotResult) -> SlotResult:
        kept = result if self.emit is None else await self.emit(result)
        self.results.append(kept)
        return kept

    @asynccontextmanager
    async def _environment(self) -> AsyncIterator[Playable]:
        """Makes an environment, and closes it after use. If closing fails, just logs the error."""
        env: Playable = await guarded(self.make_env)
        try:
            yield env
        finally:
            try:
                await guarded(env.close)
            except EnvironmentFailed as error:
                log.warning("closing an environment: %s", error)


def verified(base: Trajectory, retry: Trajectory, *, requires_success: bool = True) -> bool:
    """Whether a retry is a verified correction of its base attempt:

        R(retry) > R(base), or both reach 1 and the retry takes fewer steps

    and, with `requires_success` (as in the released code of R³L), R(retry) ≥ 1.
    """
    if requires_success and retry.reward < SUCCESS:
        return False
    both_succeed = min(base.reward, retry.reward) >= SUCCESS
    return retry.reward > base.reward or (both_succeed and retry.num_steps < base.num_steps)


def _base_result(slot: int, attempt: Attempt) -> SlotResult:
    return SlotResult("base", slot, "done", trajectory=attempt.trajectory("base", slot))


def _reflection_sample(diagnosis: Diagnosis) -> AuxSample:
    return AuxSample("reflect", *diagnosis.asked.arrays())


def _resolved(
    slot: int,
    status: SlotStatus,
    thought: ReflectionRecord,
    aux: tuple[AuxSample, ...],
    trajectory: Trajectory | None = None,
) -> SlotResult:
    return SlotResult("distilled", slot, status, trajectory=trajectory, reflection=thought, aux=aux)

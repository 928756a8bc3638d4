"""Explores one group: the verbs of which an algorithm's `explore` is made.

    play(slot)                        an attempt, from the start or from a step of a stored attempt
    ask(name, question, of)           an answer of the policy, such as a reflection on an attempt
    retry(slot, of, pivot, guidance)  the attempt `of` once more, from step `pivot`
    skip(slot, why), fail(slot, error)    no attempt

Every verb is durable. It returns what is stored for its slot or name, else it continues what a
killed actor left, else it does the work and stores the result at once. So an `explore` made of
verbs goes on where it was on another actor. The verbs hide whether an environment or an agent
plays.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from r3l.errors import EnvironmentFailed, EpisodeError, PlanError
from r3l.records import (
    GroupPlan,
    Origin,
    Recalled,
    ReflectionRecord,
    SlotResult,
    Task,
    Trajectory,
    done,
)
from r3l.rollout.attempt import Attempt, ParamsOfStep, Tokens, branch, play, start
from r3l.rollout.env_calls import guarded
from r3l.rollout.env_interface import Environment, EnvSpec, Playable, PlayedByAgent, Retry
from r3l.rollout.partial import Progress
from r3l.rollout.policy_interface import Policy, SampleParams
from r3l.rollout.prompts import Prompts

log = logging.getLogger(__name__)

Made = TypeVar("Made", SlotResult, ReflectionRecord)


class Emit(Protocol):
    """Stores a slot's result or a reflection, and returns what is stored in its place."""

    async def __call__(self, made: Made, /) -> Made: ...


MakeEnv = Callable[[], Playable]
OnFailure = Callable[[EpisodeError], None]
Question = tuple[str, str]
"""The (system, user) messages of a question."""


class Verdict(NamedTuple):
    """What was read in an answer: see the fields of ReflectionRecord."""

    cause: str = ""
    outcome: str = ""
    pivot: int = -1


Read = Callable[[str, bool], Verdict]
"""Reads an answer. Maps its text, and whether it is complete, to a verdict."""


@dataclass(frozen=True)
class Decoding:
    """How a group is sampled. Temperature 0 is greedy. `max_response_tokens` None: the
    environment's own limit. `priority`: the lowest is served first."""

    temperature: float = 1.0
    reflect_temperature: float = 1.0
    max_response_tokens: int | None = None
    max_reflection_tokens: int = 4096
    priority: int = 0


@dataclass
class Exploration:
    """One group that is being explored.

    `plan`: what the group is to be. `handed`: the stored attempts of the plan. `seed` makes
    sampling and `random` repeatable. `results`, `reflections`: what is stored of the group.
    `running`: the number of attempts, questions and requests to `emit` in progress. `idle_since`:
    when the last of them ended, in seconds of time.monotonic.
    """

    task: Task
    policy: Policy
    make_env: MakeEnv
    plan: GroupPlan
    decoding: Decoding = field(default_factory=Decoding)
    seed: int | None = None
    handed: Sequence[Recalled] = ()
    results: dict[int, SlotResult] = field(default_factory=dict)
    reflections: dict[str, ReflectionRecord] = field(default_factory=dict)
    emit: Emit | None = None
    progress: Progress = field(default_factory=Progress)
    on_failure: OnFailure = lambda error: None
    running: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self._played: dict[int, Attempt] = {}  # with the snapshots of their worlds
        self._spec: EnvSpec | None = None
        self.idle_since = time.monotonic()

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    async def play(
        self, slot: int, *, context: str = "", start: Origin | None = None, retried: bool = False
    ) -> Trajectory | None:
        """Plays an attempt. Returns None if it failed; then the slot is stored as failed.

        `context`: text below the system prompt, which the stored tokens leave out (r3l.records.
        Shown). `start`: a step of an attempt in `handed`, from which to play. `retried`: whether a
        retry may follow, so that an agent's world is saved.
        """
        if (stored := self._stored(slot)) is not None:
            return stored.trajectory
        return await self._resolved(slot, -1, self._play(slot, context, start, retried))

    async def retry(
        self, slot: int, *, of: int, pivot: int, guidance: str = "", reflection: str = ""
    ) -> Trajectory | None:
        """Retries the attempt in slot `of` from step `pivot`. The policy reads `guidance`, which
        the stored tokens leave out. `reflection`: the name of the answer that advised it. Returns
        None if the retry failed; then the slot is stored as failed."""
        if (stored := self._stored(slot)) is not None:
            return stored.trajectory
        base = self.attempt(of)
        if base is None:
            raise PlanError(f"retry of slot {of}: it holds no attempt; retry a played one")
        if not 0 <= pivot < base.num_steps:
            raise PlanError(
                f"retry of slot {of} from step {pivot}: the attempt has steps 0 to "
                f"{base.num_steps - 1}"
            )
        again = Retry(base, pivot, guidance, of, reflection=reflection)
        return await self._resolved(slot, of, self._retry(slot, again))

    async def ask(
        self,
        name: str,
        question: Question,
        *,
        of: int = -1,
        schema: dict[str, Any] | None = None,
        read: Read | None = None,
    ) -> ReflectionRecord:
        """Asks the policy a question, and stores the answer under `name`. `of`: the slot of the
        attempt in question. `schema`: a JSON schema that constrains the answer. `read`: finds the
        verdict in the answer. Raises EpisodeError if the engine fails."""
        if name in self.reflections:
            return self.reflections[name]
        with self._live():
            answer, complete = await self._ask(name, question, of, schema)
        if read is not None:
            answer = replace(answer, **read(answer.text, complete)._asdict())
        self.reflections[name] = kept = await self._emitted(answer)
        return kept

    async def skip(self, slot: int, why: str, *, of: int = -1) -> None:
        """Leaves a slot without an attempt. `of`: the slot that it would have retried."""
        if self._stored(slot) is None:
            await self._store(SlotResult(slot, "skipped", cause=why, of=of))

    async def fail(self, slot: int, error: EpisodeError | str, *, of: int = -1) -> None:
        """Resolves a slot as failed, with an error or a cause."""
        if isinstance(error, EpisodeError):
            self.on_failure(error)
        if self._stored(slot) is None:
            cause = error if isinstance(error, str) else error.cause
            await self._store(SlotResult(slot, "failed", cause=cause, of=of))

    # ── for the code around the verbs ───────────────────────────────────────────────────

    def attempt(self, slot: int) -> Trajectory | None:
        """Returns the attempt that is stored in a slot, or None."""
        result = self.results.get(slot)
        return None if result is None else result.trajectory

    @property
    def attempts(self) -> list[Trajectory]:
        """The attempts stored so far, in the order of their slots."""
        found = (self.results[slot].trajectory for slot in sorted(self.results))
        return [trajectory for trajectory in found if trajectory is not None]

    async def each(
        self, slots: Iterable[int], work: Callable[[int], Coroutine[Any, Any, Any]]
    ) -> None:
        """Awaits `work(slot)` for all slots at the same time. The first error ends them all."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for slot in slots:
                    tasks.create_task(work(slot))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def prompts(self) -> Prompts:
        """Returns the environment's prompts."""
        return Prompts((await self.spec()).prompts)

    async def spec(self) -> EnvSpec:
        """Returns the environment's description of itself."""
        if self._spec is None:
            async with self._environment():
                pass
        assert self._spec is not None
        return self._spec

    # ── how the verbs work ──────────────────────────────────────────────────────────────

    def _stored(self, slot: int) -> SlotResult | None:
        if not 0 <= slot < self.plan.slots:
            raise PlanError(
                f"slot {slot}: the plan of this group has slots 0 to {self.plan.slots - 1}; "
                "plan more of them"
            )
        return self.results.get(slot)

    async def _resolved(
        self, slot: int, of: int, attempt: Coroutine[Any, Any, Trajectory]
    ) -> Trajectory | None:
        """Plays an attempt and stores it. If it fails, only its slot fails."""
        try:
            with self._live():
                result = done(await attempt)
        except EpisodeError as error:
            await self.fail(slot, error, of=of)
            return None
        return (await self._store(result)).trajectory

    async def _store(self, result: SlotResult) -> SlotResult:
        self.results[result.slot] = kept = await self._emitted(result)
        return kept

    async def _emitted(self, made: Made) -> Made:
        if self.emit is None:
            return made
        with self._live():
            return await self.emit(made)

    async def _play(
        self, slot: int, context: str, begin: Origin | None, retried: bool
    ) -> Trajectory:
        heat, chat = self.decoding.temperature, self.policy.chat
        handed = None if begin is None else self._handed(begin)
        async with self._environment() as env:
            params = self._params(env.spec, "play", slot, heat)
            if isinstance(env, PlayedByAgent):
                again = None
                if begin is not None and handed is not None:
                    again = Retry(handed, begin.step, context, origin=begin)
                return await self._by_agent(slot, env, params, again, context, retried)
            attempt = await self.progress.resume(slot, self.task, chat, env, heat)
            if attempt is None and begin is not None and handed is not None:
                attempt = await branch(handed, begin.step, self.task, chat, env, context)
            elif attempt is None:
                attempt = await start(self.task, chat, env, context)
            of = {"pivot": -1 if begin is None else begin.step, "origin": begin}
            made = await self._to_the_end(slot, attempt, env, params, of)
        if len(attempt.snapshots) >= len(attempt.actions):  # else they lack the first steps
            self._played[slot] = attempt
        return made

    async def _retry(self, slot: int, again: Retry) -> Trajectory:
        base, chat = again.base, self.policy.chat
        async with self._environment() as env:
            params = self._params(env.spec, "retry", slot, base.temperature)
            if isinstance(env, PlayedByAgent):
                return await self._by_agent(slot, env, params, again)
            heat = base.temperature
            attempt = await self.progress.resume(slot, self.task, chat, env, heat)
            if attempt is None:
                world = self._played.get(again.of)
                attempt = await branch(
                    base, again.pivot, self.task, chat, env, again.guidance, world
                )
            of = {"of": again.of, "pivot": again.pivot, "reflection": again.reflection}
            return await self._to_the_end(slot, attempt, env, params, of)

    async def _to_the_end(
        self, slot: int, attempt: Attempt, env: Environment, params: ParamsOfStep, of: Any
    ) -> Trajectory:
        def result() -> SlotResult:
            return done(attempt.trajectory(slot, **of))

        save = self.progress.saving(attempt, env, result)
        await play(attempt, self.policy, env, params, save)
        return attempt.trajectory(slot, **of)

    async def _by_agent(
        self,
        slot: int,
        env: PlayedByAgent,
        params: ParamsOfStep,
        again: Retry | None,
        context: str = "",
        retried: bool = False,
    ) -> Trajectory:
        if context and again is None:
            raise EnvironmentFailed(
                "an agent's attempt takes no context at its start; only its retries are advised",
                cause="agent_context",
            )
        left = None if again else self.progress.find(slot)
        return await env.play_with_agent(
            self.task,
            slot,
            params,
            again,
            left=None if left is None else left.trajectory,
            offer=None
            if again
            else lambda made, seconds: self.progress.offer(lambda: done(made()), seconds),
            retried=retried,
        )

    async def _ask(
        self, name: str, question: Question, of: int, schema: dict[str, Any] | None
    ) -> tuple[ReflectionRecord, bool]:
        """Samples an answer. Returns the answer, and whether it is complete."""
        chat, decoding = self.policy.chat, self.decoding
        asked = Tokens()
        asked.given(chat.open(*question))
        asked.given(chat.prompt_ids)
        params = SampleParams(
            max_tokens=decoding.max_reflection_tokens,
            temperature=decoding.reflect_temperature,
            seed=self._seed("ask", name),
            json_schema=schema,
            priority=decoding.priority,
        )
        began, first = time.monotonic(), len(asked.ids)
        sample = await self.policy.sample(asked.ids, params)
        asked.sampled(sample)
        answer = ReflectionRecord(
            name,
            text=chat.text(sample.token_ids),
            token_ids=np.array(asked.ids, np.int32),
            logprobs=np.array(asked.logprobs, np.float32),
            start=first,
            of=of,
            version=sample.version,
            seconds=time.monotonic() - began,
            temperature=decoding.reflect_temperature,
        )
        return answer, sample.finish_reason == "stop"

    def _handed(self, start: Origin) -> Trajectory:
        for each in self.handed:
            if (each.group_id, each.trajectory.slot) == (start.group_id, start.slot):
                return each.trajectory
        raise PlanError(
            f"start in slot {start.slot} of group {start.group_id}: it was not handed out; name it "
            "in the plan's `handed`"
        )

    def _params(self, spec: EnvSpec, verb: str, slot: int, temperature: float) -> ParamsOfStep:
        budget = self.decoding.max_response_tokens or spec.max_response_tokens
        stop, priority = tuple(spec.stop), self.decoding.priority

        def params(step: int) -> SampleParams:
            seed = self._seed(verb, slot, step)
            return SampleParams(budget, temperature, seed, stop=stop, priority=priority)

        return params

    def _seed(self, *path: object) -> int | None:
        """Returns a 32-bit sampling seed, computed from the group's seed and from `path`."""
        return None if self.seed is None else zlib.crc32(repr((self.seed, *path)).encode())

    @contextmanager
    def _live(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.idle_since = time.monotonic()

    @asynccontextmanager
    async def _environment(self) -> AsyncIterator[Playable]:
        """Makes an environment, and closes it after use. If closing fails, just logs the error."""
        env: Playable = await guarded(self.make_env)
        self._spec = env.spec
        try:
            yield env
        finally:
            try:
                await guarded(env.close)
            except EnvironmentFailed as error:
                log.warning("closing an environment: %s", error)

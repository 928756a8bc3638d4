"""Explores one group: the verbs that an algorithm's `explore` is made of.

    play(slot)                        an attempt, from the start or from a step of a stored attempt
    ask(name, question, of)           an answer of the policy, such as a reflection on an attempt
    retry(slot, of, pivot, guidance)  the attempt `of` once more, from step `pivot`
    skip(slot, why), fail(slot, error)    no attempt

Every verb is durable. If a result is stored for its slot or name, the verb returns it. Otherwise it
continues what a killed actor left, or does the work from the beginning, and stores the result at
once. So an `explore` made of verbs can continue on another actor, if it makes the same decisions
again. It does if it decides from stored results, and from `random` in a fixed order. The verbs hide
whether an environment or an agent plays.
"""

import asyncio
import time
import zlib
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from r3l.errors import BufferError_, EngineDead, EnvironmentFailed, EpisodeError, PlanError
from r3l.records import (
    AttemptKey,
    GroupPlan,
    Origin,
    Recalled,
    ReflectionRecord,
    SlotResult,
    Task,
    Trajectory,
    check_reflection_name,
    done,
)
from r3l.rollout.attempt import Attempt, ParamsOfStep, Tokens, branch, play, start
from r3l.rollout.env_calls import open_env
from r3l.rollout.env_interface import EnvSpec, Playable, PlayedByAgent, Retry
from r3l.rollout.failures import record_failed, without_exit
from r3l.rollout.partial import Progress
from r3l.rollout.policy_interface import Policy, SampleParams, WatchedPolicy
from r3l.rollout.prompts import Prompts
from r3l.text import plain, plain_value

Made = TypeVar("Made", SlotResult, ReflectionRecord)


class Emit(Protocol):
    """Stores a slot's result or a reflection, and returns what was stored, which may differ."""

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
    reflect_temperature: float = 0.7
    max_response_tokens: int | None = None
    max_reflection_tokens: int = 4096
    priority: int = 0


@dataclass
class Exploration:
    """One group that is being explored.

    `plan`: the group's plan. `handed`: the stored attempts of the plan. `seed` makes sampling and
    `random` repeatable. `results`, `reflections`: those of the group that are stored already.
    `emit` stores more. `progress`: finds and saves partial attempts.

    `working`: the tasks in which verbs are in progress. `widest`: the largest `running` so far.
    `idle_since`: when a verb was last in progress, in seconds of time.monotonic. `broken`: the
    error of the engine or the store that ends the group. `ended`: whether verbs are refused.
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

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.widest = 0
        self.idle_since = time.monotonic()
        self.broken: Exception | None = None
        self.ended = False
        self.working: list[asyncio.Task[Any]] = []
        self._turns: defaultdict[int | str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._played: dict[int, Attempt] = {}  # with the snapshots of their worlds
        self._spec: EnvSpec | None = None

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    async def play(
        self, slot: int, *, context: str = "", start: Origin | None = None, retried: bool = False
    ) -> Trajectory | None:
        """Plays an attempt. Returns None if it failed; then the slot is stored as failed.

        `context`: text below the system prompt, which the stored tokens leave out (r3l.records.
        Shown). `start`: a step of an attempt in `handed`, from which to play. `retried`: whether a
        retry may follow, so that an agent's world is saved.
        """
        slot, context = self._slot(slot), _text("context", context)
        async with self._turn(slot):
            if (stored := self.results.get(slot)) is not None:
                return stored.trajectory
            return await self._settle(slot, -1, self._play(slot, context, start, retried))

    async def retry(
        self, slot: int, *, of: int, pivot: int, guidance: str = "", reflection: str = ""
    ) -> Trajectory | None:
        """Retries the attempt in slot `of` from step `pivot`. The policy reads `guidance`, which
        the stored tokens leave out. `reflection`: the name of the answer that advised it. Returns
        None if the retry failed; then the slot is stored as failed."""
        slot, of, pivot = self._slot(slot), self._slot(of), index(pivot)
        guidance, reflection = _text("guidance", guidance), _text("reflection", reflection)
        async with self._turn(slot):
            if (stored := self.results.get(slot)) is not None:
                return stored.trajectory
            base = self.attempt(of)
            if base is None:
                raise PlanError(f"retry of slot {of}: it holds no attempt; retry a played one")
            _check_step(f"retry of slot {of}", pivot, base)
            if reflection and reflection not in self.reflections:
                raise PlanError(f"reflection {reflection[:80]!r}: no answer of this group has it")
            again = Retry(base, pivot, guidance, of, reflection=reflection)
            return await self._settle(slot, of, self._attempt(slot, again, base.temperature))

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
        verdict in the text of the answer. Raises EpisodeError if the engine fails, or if the answer
        cannot be recorded or is too large to be stored."""
        name, of = _text("name", name), self._slot(of, least=-1)
        check_reflection_name(name)
        system, user = (_text("question", part) for part in question)
        schema = None if schema is None else _plain("schema", schema)
        async with self._turn(name):
            if name in self.reflections:
                return self.reflections[name]
            with self._live():
                answer, complete = await self._ask(name, (system, user), of, schema)
            if read is not None:
                answer = replace(answer, **Verdict(*read(answer.text, complete))._asdict())
            self.reflections[name] = kept = await self._emitted(answer)
            return kept

    async def skip(self, slot: int, why: str, *, of: int = -1) -> None:
        """Leaves a slot without an attempt. `of`: the slot that it would have retried."""
        slot, of = self._slot(slot), self._slot(of, least=-1)
        async with self._turn(slot):
            if slot not in self.results:
                await self._store(SlotResult(slot, "skipped", cause=why, of=of))

    async def fail(self, slot: int, error: EpisodeError | str, *, of: int = -1) -> None:
        """Resolves a slot as failed, with an error or a cause."""
        slot, of = self._slot(slot), self._slot(of, least=-1)
        async with self._turn(slot):
            if slot not in self.results:
                await self._fail(slot, error, of)

    # ── for the code around the verbs ───────────────────────────────────────────────────

    @property
    def running(self) -> int:
        """The number of attempts, questions and requests to `emit` in progress."""
        return len(self.working)

    @property
    def open(self) -> list[int]:
        """The slots without a result."""
        return [slot for slot in range(self.plan.slots) if slot not in self.results]

    def attempt(self, slot: int) -> Trajectory | None:
        """Returns the attempt that is stored in a slot, or None."""
        result = self.results.get(slot)
        return None if result is None else result.trajectory

    @property
    def attempts(self) -> list[Trajectory]:
        """The attempts stored so far, in the order of their slots."""
        found = (self.results[slot].trajectory for slot in sorted(self.results))
        return [trajectory for trajectory in found if trajectory is not None]

    async def each(self, slots: Iterable[int], work: Callable[[int], Awaitable[Any]]) -> None:
        """Awaits `work(slot)` for all slots at the same time. The first error ends them all."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for slot in slots:
                    tasks.create_task(without_exit(partial(work, slot)))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def fail_open(self, cause: str) -> None:
        """Resolves all open slots as failed."""
        for slot in self.open:
            await self._fail(slot, cause, -1)

    async def prompts(self) -> Prompts:
        """Returns the environment's prompts."""
        return Prompts((await self.spec()).prompts)

    async def spec(self) -> EnvSpec:
        """Returns the environment's description of itself."""
        if self._spec is None:
            with self._live():
                async with self._environment():
                    pass
        assert self._spec is not None
        return self._spec

    # ── how the verbs work ──────────────────────────────────────────────────────────────

    def _slot(self, slot: int, least: int = 0) -> int:
        """Returns a slot as an int. Raises PlanError if the plan lacks it."""
        if not least <= index(slot) < self.plan.slots:
            raise PlanError(
                f"slot {slot}: the plan of this group has slots 0 to {self.plan.slots - 1}; "
                "plan more of them"
            )
        return index(slot)

    @asynccontextmanager
    async def _turn(self, key: int | str) -> AsyncIterator[None]:
        """Waits until no other verb works on a slot or name. Raises PlanError if the exploration
        has ended."""
        await asyncio.sleep(0)  # a loop over stored results must not block the whole actor
        async with self._turns[key]:
            if self.ended:
                raise PlanError(f"{key}: the exploration of this group has ended")
            yield

    async def _settle(
        self, slot: int, of: int, attempt: Coroutine[Any, Any, Trajectory]
    ) -> Trajectory | None:
        """Plays an attempt and stores it. If it fails, only its slot fails."""
        try:
            with self._live():
                result = done(await attempt)
        except EpisodeError as error:
            await self._fail(slot, error, of)
            return None
        return (await self._store(result)).trajectory

    async def _fail(self, slot: int, error: EpisodeError | str, of: int) -> None:
        if isinstance(error, EpisodeError):
            self.on_failure(error)
        cause = error if isinstance(error, str) else error.cause
        await self._store(SlotResult(slot, "failed", cause=cause, of=of))

    async def _store(self, result: SlotResult) -> SlotResult:
        self.results[result.slot] = kept = await self._emitted(result)
        return kept

    async def _emitted(self, made: Made) -> Made:
        if self.emit is None:
            return made
        with self._live(), self._ends_group():
            return await self.emit(made)

    async def _play(
        self, slot: int, context: str, start: Origin | None, retried: bool
    ) -> Trajectory:
        again = None
        if start is not None:
            handed = self._handed(start)
            again = Retry(handed, start.step, context, origin=start)
        return await self._attempt(slot, again, self.decoding.temperature, context, retried)

    async def _attempt(
        self,
        slot: int,
        again: Retry | None,
        temperature: float,
        context: str = "",
        retried: bool = False,
    ) -> Trajectory:
        """Plays `again`, or else a new attempt with `context`. Continues what is left of it."""
        of = again.fields if again else {}
        async with self._environment() as env:
            verb = "retry" if again and again.of >= 0 else "play"
            params = self._params(env.spec, verb, slot, temperature)
            if isinstance(env, PlayedByAgent):
                return await self._by_agent(slot, env, params, again, context, retried)
            chat = self.policy.chat
            attempt = await self.progress.resume(slot, self.task, chat, env, temperature, of)
            if attempt is None and again is not None:
                world = self._played.get(again.of)
                attempt = await branch(
                    again.base, again.pivot, self.task, chat, env, again.guidance, world
                )
            elif attempt is None:
                attempt = await start(self.task, chat, env, context)

            def made() -> Trajectory:
                return attempt.trajectory(slot, **of)

            save = self.progress.saving(attempt, env, lambda: done(made()))
            await play(attempt, WatchedPolicy(self.policy, self._ends_group), env, params, save)
        if len(attempt.snapshots) >= len(attempt.actions):  # else they lack the first steps
            self._played[slot] = attempt
        return made()

    async def _by_agent(
        self,
        slot: int,
        env: PlayedByAgent,
        params: ParamsOfStep,
        again: Retry | None,
        context: str,
        retried: bool,
    ) -> Trajectory:
        if context and again is None:
            raise EnvironmentFailed(
                "an agent's attempt takes no context at its start; only its retries are advised",
                cause="agent_context",
            )
        new = again is None  # a retry is begun again: it has the tape of its base

        async def offer(made: Callable[[], Trajectory], seconds: float) -> bool:
            return await self.progress.offer(lambda: done(made()), seconds)

        left = self.progress.find(slot) if new else None
        return await env.play_with_agent(
            self.task,
            slot,
            params,
            again,
            left=None if left is None else left.trajectory,
            offer=offer if new else None,
            retried=retried,
        )

    async def _ask(
        self, name: str, question: Question, of: int, schema: dict[str, Any] | None
    ) -> tuple[ReflectionRecord, bool]:
        """Samples an answer. Returns the answer, and whether it is complete."""
        chat, decoding = self.policy.chat, self.decoding
        asked = Tokens()
        asked.add_read(chat.open(*question))
        asked.add_read(chat.prompt_ids)
        params = SampleParams(
            max_tokens=decoding.max_reflection_tokens,
            temperature=decoding.reflect_temperature,
            seed=self._seed("ask", name),
            json_schema=schema,
            priority=decoding.priority,
        )
        began, first = time.monotonic(), len(asked.ids)
        sample = await WatchedPolicy(self.policy, self._ends_group).sample(asked.ids, params)
        asked.add_response(sample)
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
        """Returns the stored attempt of `start`. Raises EnvironmentFailed if it is gone."""
        place = f"start in slot {start.slot} of group {start.group_id}"
        for each in self.handed:
            if (each.group_id, each.trajectory.slot) == (start.group_id, start.slot):
                _check_step(place, start.step, each.trajectory)
                return each.trajectory
        if AttemptKey(start.group_id, start.slot) in self.plan.handed:
            raise EnvironmentFailed(f"{place}: it is no longer stored", cause="start_gone")
        raise PlanError(f"{place}: it was not handed out; name it in the plan's `handed`")

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
        """Counts a verb's work while it is in progress. An error that comes neither from the engine
        nor from the store ends only this work, as RecordFailed."""
        task = asyncio.current_task()
        assert task is not None
        self.working.append(task)
        self.widest = max(self.widest, self.running)
        try:
            with self._ends_group((EngineDead, BufferError_)):
                yield
        except (EpisodeError, PlanError):
            raise
        except Exception as error:
            if self.broken is not None:
                raise
            raise record_failed(error) from error
        finally:
            self.working.remove(task)
            self.idle_since = time.monotonic()

    @contextmanager
    def _ends_group(self, kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
        """Keeps an error of the engine or the store, which ends the group."""
        try:
            yield
        except (EpisodeError, PlanError):
            raise
        except kinds as error:
            if self.broken is None or isinstance(error, EngineDead):
                self.broken = error
            raise

    @asynccontextmanager
    async def _environment(self) -> AsyncIterator[Playable]:
        async with open_env(self.make_env) as env:
            self._spec = env.spec
            yield env


def _check_step(what: str, step: int, attempt: Trajectory) -> None:
    if not 0 <= step < attempt.num_steps:
        raise PlanError(
            f"{what}, from step {step}: the attempt has steps 0 to {attempt.num_steps - 1}"
        )


def _plain(what: str, value: Any) -> Any:
    """Returns a value that can be sent. Raises PlanError."""
    try:
        return plain_value(value, what)
    except ValueError as error:
        raise PlanError(f"{error}") from None


def _text(what: str, value: object) -> str:
    try:
        return plain(value, what)
    except ValueError as error:
        raise PlanError(f"{error}") from None

"""Partial attempts: what an actor left is continued, or dropped and played afresh."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from msgspec.structs import replace

from r3l import codec
from r3l.errors import EnvironmentFailed, RecordError
from r3l.records import GroupPlan, Origin, Recalled, ReflectionRecord, SlotResult
from r3l.rollout.exploration import Exploration
from r3l.rollout.group import explore_group
from r3l.rollout.partial import Progress
from r3l.rollout.policy_interface import Sample
from r3l.run.config import load
from tests.r3l.fakes import END, Corridor, ScriptedPolicy
from tests.r3l.rollout.fakes import TASK, exploration, learner_of_advice

Slots = dict[int, SlotResult]


class Killed(Exception):
    """Ends an actor."""


@dataclass
class Store:
    """What the buffer has of one group, and what its actors did."""

    results: Slots = field(default_factory=dict)
    reflections: dict[str, ReflectionRecord] = field(default_factory=dict)
    partial: Slots = field(default_factory=dict)
    responses: int = 0
    emits: int = 0

    def progress(self, every_s: float = 0.0) -> Progress:
        """Saves as the buffer does, and continues what it holds of open slots."""

        async def save(result: SlotResult) -> None:
            self.partial[result.slot] = codec.decode(SlotResult, codec.encode(result))

        found = [r for slot, r in self.partial.items() if slot not in self.results]
        return Progress(found, save, every_s, Counter())

    @property
    def encoded(self) -> list[bytes]:
        """What is stored, without what differs from one actor to the next."""
        kept = [*map(timeless, self.results.values())]
        kept += [replace(r, seconds=0.0, version=0) for r in self.reflections.values()]
        return sorted(map(codec.encode, kept))


def timeless(result: SlotResult) -> SlotResult:
    attempt = result.trajectory
    if attempt is None:
        return result
    zeros = np.zeros(attempt.num_steps, np.int32)
    seconds = zeros.astype(np.float32)
    attempt = replace(
        attempt, step_seconds=seconds, step_versions=zeros, step_newest_versions=zeros
    )
    return replace(result, trajectory=attempt)


def act(
    store: Store,
    explore: Callable[[Exploration], Awaitable[None]],
    x: Exploration,
    responses: int = 1 << 30,
    emits: int = 1 << 30,
) -> Store:
    """Explores a group until it is whole, or until the actor dies: before a response, or after a
    result is stored."""
    policy: Any = x.policy
    sample, died = policy.sample, False
    x.results, x.reflections = dict(store.results), dict(store.reflections)
    left = {"responses": responses, "emits": emits}

    def lives(what: str) -> None:
        nonlocal died
        died = died or left[what] == 0
        if died:
            raise Killed
        left[what] -= 1

    async def counted(*asked: Any) -> Any:
        lives("responses")
        store.responses += 1
        policy.version = store.responses  # every response is of other weights
        made = await sample(*asked)
        if died:
            raise Killed
        return made

    async def emit(made: Any) -> Any:
        lives("emits")
        store.emits += 1
        kept: Any = store.results if isinstance(made, SlotResult) else store.reflections
        key = made.slot if isinstance(made, SlotResult) else made.name
        assert key not in kept, f"{key} was stored twice"
        kept[key] = codec.decode(type(made), codec.encode(made))
        if not left["emits"]:
            lives("emits")
        return made

    policy.sample, x.emit = counted, emit
    with suppress(Killed):
        asyncio.run(explore_group(explore, x))
    policy.sample = sample
    return store


def pair(
    store: Store, *overrides: str, make: Any = Corridor, every_s: float = 0.0, **limits: int
) -> Counter[str]:
    """Explores one attempt and its retry. Returns the counts of its partial attempts."""
    config = load(None, ["algorithm.group_size=2", *overrides])
    policy, progress = learner_of_advice(), store.progress(every_s)
    x = exploration(policy, config, make_env=lambda task: make(), seed=3, progress=progress)
    act(store, config.algorithm.explore, x, **limits)
    return progress.counts


def test_an_actor_killed_after_any_response_costs_no_response() -> None:
    pair(whole := Store())
    assert whole.responses == 6  # three doors, a reflection, two doors
    for responses in range(whole.responses):
        store = Store()
        pair(store, responses=responses)
        counts = pair(store)
        assert store.responses == whole.responses, responses
        assert store.encoded == whole.encoded, responses
        assert counts["dropped"] == 0


def test_a_slot_may_lose_its_actor_after_every_response() -> None:
    store, whole = Store(), Store()
    for _ in range(6):
        pair(store, responses=1)
    pair(store)
    pair(whole)
    assert store.encoded == whole.encoded and store.responses == whole.responses
    base = store.results[0].trajectory
    assert base is not None and base.step_versions.tolist() == [1, 2, 3]


class Clocked(Corridor):
    """Shows another time at every step."""

    time = 0

    def step(self, action: str) -> Any:
        Clocked.time += 1
        observation, *rest = super().step(action)
        return f"{observation} at {Clocked.time}", *rest


class Reworded(Corridor):
    """Has other instructions."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = changed(self.spec, system_prompt="Answer at once.")


@pytest.mark.parametrize(
    ("make", "change"),
    [(Clocked, []), (Corridor, ["actor.temperature=0.5"]), (Reworded, [])],
)
def test_an_attempt_that_cannot_be_continued_is_dropped_and_its_slot_played_afresh(
    make: Any, change: list[str]
) -> None:
    store = Store()
    pair(store, make=Clocked if make is Clocked else Corridor, responses=2)
    assert not store.results and store.partial[0].trajectory is not None
    counts = pair(store, *change, make=make)
    assert counts == {"dropped": 1}
    attempt = store.results[0].trajectory
    assert attempt is not None and attempt.step_versions[0] == 3  # its first step is its own


def test_a_retry_of_something_else_is_not_continued() -> None:
    """The actor that goes on decides otherwise than the one that was killed."""

    def decided(of: int, pivot: int) -> Callable[[Exploration], Awaitable[None]]:
        async def explore(x: Exploration) -> None:
            await x.play(0)
            await x.play(1)
            await x.retry(2, of=of, pivot=pivot, guidance="say b")

        return explore

    for of, pivot, counts in ((0, 1, {"continued": 1, "tokens": 2}), (1, 1, None), (0, 0, None)):
        store = Store()
        for explore, responses in ((decided(0, 1), 7), (decided(of, pivot), 99)):
            progress = store.progress()
            x = Exploration(TASK, learner_of_advice(), Corridor, GroupPlan(3), progress=progress)
            act(store, explore, x, responses=responses)
        retry = store.results[2].trajectory
        assert retry is not None and (retry.of, retry.pivot) == (of, pivot)
        assert progress.counts == (counts or {"dropped": 1})


def test_progress_is_saved_when_enough_was_sampled_and_never_of_a_world_without_replay() -> None:
    store = Store()
    pair(store, every_s=60.0)
    assert not store.partial

    class Chance(Corridor):
        def __init__(self) -> None:
            super().__init__()
            self.spec = changed(self.spec, deterministic="no")

    pair(store := Store(), make=Chance, responses=2)
    assert not store.partial


@pytest.mark.parametrize("error", [RecordError("a logprob above 0"), IndexError("of no step")])
def test_progress_that_is_no_valid_record_is_counted_and_the_attempt_continues(
    error: Exception,
) -> None:
    def broken() -> SlotResult:
        raise error

    store = Store()
    progress = store.progress()
    assert not asyncio.run(progress.offer(broken, 1.0))
    assert progress.counts["refused"] == 1 and not store.partial


def test_progress_of_an_attempt_without_a_call_is_no_fault() -> None:
    def empty() -> SlotResult:
        raise EnvironmentFailed("no call yet", cause="agent_no_calls")

    progress = Store().progress()
    with pytest.raises(EnvironmentFailed):
        asyncio.run(progress.offer(empty, 1.0))
    assert not progress.counts["refused"]


class ByChance(ScriptedPolicy):
    """Answers by what it reads and its seed alone, with one to three letters, soon or later."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "")

    async def sample(self, token_ids: Any, params: Any) -> Sample:
        number = crc32(repr((list(token_ids), params.seed)).encode())
        for _ in range(number % 3):
            await asyncio.sleep(0)
        text = "abc"[number // 3 % 3] + "de"[: number // 9 % 3]
        ids = (*self.chat.tokenizer.encode(text), END)
        return Sample(ids, (-0.5,) * len(ids), self.version, self.version, "stop")


def random_explore(random: Random, slots: int, together: bool) -> Any:
    """Makes an `explore` of all verbs. What is retried, from where and with which advice depends on
    stored results alone."""
    kinds = [
        random.choice(["play", "play", "start", "retry", "retry", "skip"]) for _ in range(slots)
    ]
    chosen = [random.randrange(1 << 20) for _ in range(slots)]

    async def explore(x: Exploration) -> None:
        resolved = [asyncio.Event() for _ in range(slots)]

        async def fill(slot: int) -> None:
            kind, number = kinds[slot], chosen[slot]
            of = number % slot if slot else -1
            if kind == "retry" and of >= 0:
                await resolved[of].wait()
            if kind == "play" or of < 0:
                await x.play(slot, context="well" * (number % 2))
            elif kind == "start":
                step = number % x.handed[0].trajectory.num_steps
                await x.play(slot, start=Origin("g9", 3, step), context="go" * (number // 4 % 2))
            elif kind == "skip" or x.attempt(of) is None:
                await x.skip(slot, "not_wanted", of=of)
            else:
                base = x.attempt(of)
                assert base is not None
                name = f"why-{number % 3}-{of}"
                advice = await x.ask(name, ("Think.", " ".join(base.actions)), of=of)
                pivot = crc32(advice.text.encode()) % base.num_steps
                guidance = advice.text * (number // 3 % 2)
                await x.retry(slot, of=of, pivot=pivot, guidance=guidance, reflection=name)
            resolved[slot].set()

        if together:
            await x.each(range(slots), fill)
        for slot in range(slots):
            await fill(slot)

    return explore


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_group_is_the_same_wherever_its_actors_were_killed(seed: int, together: bool) -> None:
    """Whatever the verbs, a kill between any two of them loses nothing but what was under way."""
    random = Random(seed)
    slots, doors = random.randint(2, 6), random.choice(["ab", "abca"])
    explore = random_explore(random, slots, together)
    begun = Exploration(TASK, ByChance(), lambda: Corridor(doors), GroupPlan(1), seed=8)
    (handed,) = asyncio.run(explore_group(lambda x: x.play(0), begun))
    assert handed.trajectory is not None
    handed_out = [Recalled("", "g9", replace(handed.trajectory, slot=3))]
    snapshots = random.random() < 0.5

    def group(store: Store) -> Exploration:
        return Exploration(
            TASK,
            ByChance(),
            lambda: Corridor(doors, snapshots=snapshots),
            GroupPlan(slots),
            seed=seed,
            handed=handed_out,
            progress=store.progress(),
        )

    whole = act(store := Store(), explore, group(store))
    assert sorted(whole.results) == [*range(slots)]
    for limits in (
        *({"emits": k} for k in range(1, whole.emits)),
        *({"responses": k} for k in range(whole.responses)),
    ):
        killed = act(store := Store(), explore, group(store), **limits)
        again = act(killed, explore, group(killed))
        assert again.encoded == whole.encoded, limits
        assert again.responses <= whole.responses + (slots if together else 0), limits
    dying, actors = Store(), 0
    while len(dying.results) < slots:
        act(dying, explore, group(dying), emits=1)
        actors += 1
    assert dying.encoded == whole.encoded and actors == whole.emits

"""How an actor explores groups: an algorithm's own exploration, evaluations, what fails alone."""

import asyncio
import zlib
from typing import Any

import pytest

from buffer import Lease
from r3l.algorithms.algorithm import Algorithm
from r3l.errors import RecordError
from r3l.records import GroupPlan, SlotResult, Task
from r3l.rollout.attempt import Attempt
from r3l.rollout.exploration import Exploration
from tests.actors.test_actor import Buffer, Engine, acting, explored


class AskingLast(Algorithm):
    """Asks about each attempt when all of them are stored."""

    name: str = "asking_last"

    async def explore(self, x: Exploration) -> None:
        await super().explore(x)
        for slot in range(x.plan.slots):
            await x.ask(f"why-{slot}", ("Think.", "Why?"), of=slot)


class Raising(Algorithm):
    name: str = "raising"

    async def explore(self, x: Exploration) -> None:
        await x.play(0)
        raise ValueError("no idea")


def told(buffer: Buffer) -> list[Any]:
    """The slots with their causes, and the names, in the order in which they were put."""
    return [
        (made.slot, made.cause) if isinstance(made, SlotResult) else made.name
        for _, made, _ in buffer.puts
    ]


def test_what_an_algorithm_asks_after_its_last_attempt_is_put_with_this_attempt() -> None:
    buffer = Buffer(groups=1)
    actor = asyncio.run(explored(AskingLast(), buffer, 2 * 3 + 2))
    first, *rest = told(buffer)
    assert sorted([first, rest[0]]) == [(0, ""), (1, "")] and rest[1:] == ["why-0", "why-1"]
    assert all(fingerprint == (0, "abc") for *_, fingerprint in buffer.puts)
    assert actor.metrics.results == {"base_done": 2} and actor.results == 2


def test_an_algorithm_that_raises_costs_its_slots_and_not_the_actor() -> None:
    buffer = Buffer(groups=2)
    actor = asyncio.run(explored(Raising(), buffer, 2 * 3))
    assert sorted(told(buffer)) == [(0, "")] * 2 + [(1, "explore_ValueError")] * 2
    assert actor.metrics.results == {"base_done": 2, "base_failed": 2}
    assert actor.failures.causes == {"explore_ValueError"}


def test_attempts_that_cannot_be_recorded_cost_their_slots_and_not_the_actor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Attempt.trajectory

    def trajectory(attempt: Attempt, slot: int, **of: Any) -> Any:
        if slot == 1:
            raise RecordError("pivot 3: must be from -1 to 1")
        return recorded(attempt, slot, **of)

    monkeypatch.setattr(Attempt, "trajectory", trajectory)
    buffer = Buffer(groups=2)
    actor = asyncio.run(explored(Algorithm(), buffer, 2 * 2 * 3))
    assert sorted(told(buffer)) == [(0, "")] * 2 + [(1, "record_RecordError")] * 2
    assert actor.metrics.results == {"base_done": 2, "base_failed": 2}
    assert actor.failures.causes == {"record_RecordError"}


def test_an_evaluation_never_calls_the_algorithms_own_exploration() -> None:
    buffer = Buffer(groups=1)
    buffer.plan, buffer.purpose = GroupPlan(1), "eval"
    asyncio.run(explored(Raising(), buffer, 3))
    assert told(buffer) == [(0, "")]


def test_an_evaluation_draws_by_its_task_and_training_by_the_number_of_its_group() -> None:
    async def drawn(purpose: Any, tag: str, group: str) -> tuple[Any, float]:
        task = Task("t", "corridor", 0)
        async with acting(Engine(), Buffer(groups=0), requests=1) as actor:
            x = actor._group(Lease(group, task, purpose, tag, GroupPlan(1), (), 60.0)).x
            return x.seed, x.decoding.temperature

    seed = zlib.crc32(b"0/t/0")  # as r3l-eval has it
    for tag, temperature in (("eval@0", 0.4), ("eval@7@0", 0.0), ("mine", 0.4)):
        for group in ("g1", "g9"):
            assert asyncio.run(drawn("eval", tag, group)) == (seed, temperature)
    assert asyncio.run(drawn("train", "", "g1")) == (zlib.crc32(b"0/g1"), 1.0)

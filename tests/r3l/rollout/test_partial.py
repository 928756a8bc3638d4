"""Partial attempts: what an actor left is continued, or dropped and played afresh."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace as changed
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from r3l import codec
from r3l.errors import RecordError
from r3l.records import GroupPlan, SlotResult
from r3l.rollout.group import explore_group
from r3l.rollout.partial import Progress
from r3l.run.config import load
from tests.r3l.fakes import Corridor
from tests.r3l.rollout.fakes import TASK, learner_of_advice

Slots = dict[tuple[str, int], SlotResult]


class Killed(Exception):
    """Ends an actor."""


def explore(progress: Progress, accepted: Slots, *overrides: str, make: Any = Corridor,
            die_after: int = 1 << 30) -> tuple[Slots, int]:  # fmt: skip
    """Explores one slot and its retry. The actor dies when `die_after` responses were sampled.
    Returns what it put, and the number of responses."""
    policy, put = learner_of_advice(), dict(accepted)
    sample, sampled = policy.sample, 0

    async def counted(*asked: Any) -> Any:
        nonlocal sampled
        if sampled == die_after:
            raise Killed
        sampled += 1
        policy.version = sampled  # every response is of other weights
        return await sample(*asked)

    async def emit(result: SlotResult) -> SlotResult:
        put[result.role, result.slot] = codec.decode(SlotResult, codec.encode(result))
        return result

    policy.sample = counted  # type: ignore[method-assign]
    config = load(None, ["algorithm.group_size=2", *overrides])
    with suppress(Killed):
        asyncio.run(explore_group(
            TASK, policy, make, config, seed=3, plan=GroupPlan(1, 1),
            accepted=list(accepted.values()), progress=progress, emit=emit,
        ))  # fmt: skip
    return put, sampled


def saving(kept: Slots, every_s: float = 0.0) -> Progress:
    """Saves into `kept` as the buffer does, and continues what it holds."""

    async def save(result: SlotResult) -> None:
        kept[result.role, result.slot] = codec.decode(SlotResult, codec.encode(result))

    return Progress(list(kept.values()), save, every_s, Counter())


def timeless(result: SlotResult) -> SlotResult:
    """A result without what differs from one actor to the next: seconds and versions."""
    attempt, thought = result.trajectory, result.reflection
    if attempt is not None:
        zeros = np.zeros(attempt.num_steps, np.int32)
        attempt = replace(
            attempt, step_seconds=zeros.astype(np.float32), step_versions=zeros,
            step_newest_versions=zeros,
        )  # fmt: skip
    if thought is not None:
        thought = replace(thought, seconds=0.0, version=0)
    return replace(result, trajectory=attempt, reflection=thought)


def encoded(results: Slots) -> dict[tuple[str, int], bytes]:
    return {key: codec.encode(timeless(result)) for key, result in results.items()}


def test_an_actor_killed_after_any_response_costs_no_response() -> None:
    whole, responses = explore(Progress(), {})
    assert whole["distilled", 0].aux and responses == 6  # three doors, a reflection, two doors
    for die_after in range(responses):
        kept: Slots = {}
        put, first = explore(saving(kept), {}, die_after=die_after)
        second = saving({key: r for key, r in kept.items() if key not in put})
        result, rest = explore(second, put)
        assert first + rest == responses, die_after
        assert encoded(result) == encoded(whole), die_after
        assert second.counts["dropped"] == 0


def test_a_slot_may_lose_its_actor_after_every_response() -> None:
    kept: Slots = {}
    put: Slots = {}
    for _ in range(6):
        open_slots = {key: r for key, r in kept.items() if key not in put}
        progress = saving(open_slots)
        put, _ = explore(progress, put, die_after=1)
        kept |= open_slots
    whole, _ = explore(Progress(), {})
    put, _ = explore(Progress(), put)
    assert encoded(put) == encoded(whole)
    assert put["base", 0].trajectory.step_versions.tolist() == [1, 1, 1]  # type: ignore[union-attr]


class Clocked(Corridor):
    """Shows another time at every step."""

    time = 0

    def step(self, action: str) -> Any:
        Clocked.time += 1
        observation, *rest = super().step(action)
        return f"{observation} at {Clocked.time}", *rest


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (Clocked, []),
        (Corridor, ["actor.temperature=0.5"]),
        (lambda: Reworded(), []),
    ],
)
def test_an_attempt_that_cannot_be_continued_is_dropped_and_its_slot_played_afresh(
    make: Any, change: list[str]
) -> None:
    kept: Slots = {}
    first = Clocked if make is Clocked else Corridor
    put, _ = explore(saving(kept), {}, make=first, die_after=2)
    assert not put and kept["base", 0].trajectory is not None
    again = saving(dict(kept))
    result, responses = explore(again, {}, *change, make=make)
    assert again.counts == {"dropped": 1}
    assert result["base", 0].status == "done" and responses >= 4
    attempt = result["base", 0].trajectory
    assert attempt is not None and attempt.step_versions[0] == 1  # its first step is its own


class Reworded(Corridor):
    """Has other instructions."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = changed(self.spec, system_prompt="Answer at once.")


def test_progress_is_saved_when_enough_was_sampled_and_never_of_a_world_without_replay() -> None:
    kept: Slots = {}
    explore(saving(kept, every_s=60.0), {})
    assert not kept

    class Chance(Corridor):
        def __init__(self) -> None:
            super().__init__()
            self.spec = changed(self.spec, deterministic="no")

    explore(saving(kept), {}, make=Chance, die_after=2)
    assert not kept


def test_progress_that_is_no_valid_record_is_counted_and_the_attempt_continues() -> None:
    def broken() -> SlotResult:
        raise RecordError("a logprob above 0")

    kept: Slots = {}
    progress = saving(kept)
    assert not asyncio.run(progress.offer(broken, 1.0))
    assert progress.counts["refused"] == 1 and not kept

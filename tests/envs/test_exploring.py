"""Groups that are explored in this process: what an algorithm gets, and what is kept."""

import asyncio

import pytest

from envs import exploring
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.memory import Memory
from r3l.algorithms.r3l import R3L
from r3l.errors import UserError
from r3l.records import AttemptKey, GroupPlan, Origin, Recalled
from r3l.rollout.exploration import Decoding
from tests.plug.worlds import TASK, Player
from tests.r3l.fakes import Corridor


class FromStored(Algorithm):
    """One attempt from step 1 of the stored one."""

    def plan(self, lease):
        return GroupPlan(1, handed=(AttemptKey("stored", 0),))

    async def explore(self, x):
        await x.play(0, start=Origin("stored", 0, 1))


def explored(algorithm, **more):
    return asyncio.run(exploring.explore(algorithm, TASK, Player(), Corridor, **more))


def test_a_group_has_results_reflections_and_its_place_in_the_memory() -> None:
    memory, stored = Memory(), []

    async def emit(made):
        stored.append(made)
        return made

    group = explored(R3L(group_size=4), memory=memory, emit=emit)
    assert [result.status for result in group.results] == ["done"] * 4
    assert len(group.reflections) == 2 and group.times["leased"] <= group.times["complete"]
    assert sorted(map(id, stored)) == sorted(map(id, (*group.results, *group.reflections)))
    assert memory.groups[TASK.task_id] == [group]
    assert explored(R3L(group_size=4)).group_id != group.group_id


def test_a_plan_and_a_decoding_are_used_as_given() -> None:
    group = explored(Algorithm(), plan=GroupPlan(3), decoding=Decoding(temperature=0.5))
    assert len(group.trajectories) == 3
    assert {attempt.temperature for attempt in group.trajectories} == {0.5}


def test_the_attempts_of_a_plan_come_from_the_memory_or_from_a_lease() -> None:
    attempt = explored(Algorithm(group_size=1)).trajectories[0]
    handed = [Recalled("new", "stored", attempt)]
    [started] = explored(FromStored(), handed=handed).trajectories
    assert started.origin == Origin("stored", 0, 1) and started.pivot == 1
    [failed] = explored(FromStored()).results
    assert (failed.status, failed.cause) == ("failed", "start_gone")


def test_a_failed_attempt_costs_its_slot_and_is_told() -> None:
    class Broken(Corridor):
        def step(self, action):
            raise RuntimeError("out of order")

    failures = []
    group = asyncio.run(
        exploring.explore(
            Algorithm(group_size=2), TASK, Player(), Broken, on_failure=failures.append
        )
    )
    assert [result.status for result in group.results] == ["failed"] * 2
    assert len(failures) == 2 and "out of order" in str(failures[0])


def test_tasks_and_environments_are_named_as_in_settings() -> None:
    tasks = exploring.tasks("workshop", 3, seed=1, options={"stations": 2})
    assert len({task.task_id for task in tasks}) == 3
    assert not {task.task_id for task in tasks} & {
        task.task_id for task in exploring.tasks("workshop", 3, split="eval")
    }
    with pytest.raises(UserError, match="no-such-world"):
        exploring.tasks("no-such-world", 1)

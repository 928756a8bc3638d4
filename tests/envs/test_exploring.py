"""Groups that are explored in this process, by name of the environment."""

import asyncio

import pytest

import r3l
from r3l.errors import UserError
from r3l.records import Recalled
from tests.plug.worlds import Player
from tests.r3l.fakes import Corridor

TASK = r3l.Task("corridor/1", "corridor", 1)


def explored(algorithm, env=Corridor, **more):
    return asyncio.run(r3l.explore(algorithm, TASK, Player(), env, **more))


def test_a_group_is_complete_and_has_the_algorithms_slots() -> None:
    group = explored(r3l.R3L(group_size=4))
    assert group.state == "complete" and not group.unresolved and len(group.results) == 4
    assert {r.name for r in group.reflections} == {"reflect-0", "reflect-1"}
    assert group.times["leased"] <= group.times["complete"]


def test_groups_have_ids_of_their_own_so_that_a_batch_can_hold_them() -> None:
    groups = [explored(r3l.GRPO(group_size=2)) for _ in range(2)]
    assert len({group.group_id for group in groups}) == 2


def test_an_environment_is_named_or_made_by_a_function() -> None:
    [task] = r3l.tasks("keys", 1, seed=3)
    group = asyncio.run(r3l.explore(r3l.GRPO(group_size=2), task, Player(), "keys"))
    assert group.task == task and len(group.trajectories) == 2
    with pytest.raises(UserError, match="env 'kees': unknown"):
        explored(r3l.GRPO(group_size=2), "kees")
    with pytest.raises(UserError, match="split"):
        r3l.tasks("keys", 1, split="tests")


def test_a_plan_of_ones_own_replaces_the_algorithms() -> None:
    assert len(explored(r3l.GRPO(), plan=r3l.GroupPlan(3)).results) == 3


def test_a_memory_gives_and_keeps_groups() -> None:
    memory = r3l.Memory()
    first = explored(r3l.R3(group_size=4), memory=memory)
    second = explored(r3l.R3L(group_size=4), memory=memory)
    assert memory.groups[TASK.task_id] == [first, second]
    recalled = memory.batch(r3l.R3(group_size=4), [first]).recalled
    assert {r.group_id for r in recalled} == {second.group_id}  # its retries succeeded


def test_results_and_reflections_are_emitted_at_once() -> None:
    made = []

    async def emit(one):
        made.append(one)
        return one

    group = explored(r3l.R3L(group_size=4), emit=emit)
    assert len(made) == len(group.results) + len(group.reflections)


def test_a_failed_attempt_costs_its_slot_and_is_told() -> None:
    class Broken(Corridor):
        def step(self, action):
            raise OSError("the door is stuck")

    told = []
    group = explored(r3l.GRPO(group_size=2), Broken, on_failure=told.append)
    assert [r.cause for r in group.results] == ["environment_OSError"] * 2 and len(told) == 2


def test_a_decoding_is_used_as_given() -> None:
    group = explored(r3l.GRPO(group_size=2), decoding=r3l.Decoding(temperature=0.5))
    assert {attempt.temperature for attempt in group.trajectories} == {0.5}


class FromStored(r3l.Algorithm):
    """One attempt, from step 1 of a stored one."""

    def plan(self, lease):
        return r3l.GroupPlan(1, handed=(r3l.AttemptKey("stored", 0),))

    async def explore(self, x):
        await x.play(0, start=r3l.Origin("stored", 0, 1))


def test_the_stored_attempts_of_a_plan_come_from_a_lease_or_the_memory() -> None:
    [attempt] = explored(r3l.GRPO(), plan=r3l.GroupPlan(1)).trajectories
    handed = [Recalled("new", "stored", attempt)]
    [started] = explored(FromStored(), handed=handed).trajectories
    assert started.origin == r3l.Origin("stored", 0, 1) and started.pivot == 1
    [failed] = explored(FromStored()).results
    assert (failed.status, failed.cause) == ("failed", "start_gone")

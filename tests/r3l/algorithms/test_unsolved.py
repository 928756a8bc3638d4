"""R³L with `reflect_on=unsolved`: reflections only where no base attempt succeeded."""

import asyncio
from typing import Any

import pytest

from r3l.errors import UserError
from r3l.records import Group, GroupPlan, SlotResult
from r3l.rollout.exploration import Exploration
from r3l.rollout.group import explore_group
from r3l.training.group_memory import Memory
from tests.r3l.algorithms.fakes import TASK, get, planned
from tests.r3l.fakes import Corridor, ScriptedPolicy
from tests.r3l.rollout.fakes import always_right, learner_of_advice


def unsolved(**more: Any) -> Any:
    return get(reflect_on="unsolved", **{"group_size": 4} | more)


def explored(policy: ScriptedPolicy, algorithm: Any = None, **more: Any) -> Group:
    algorithm = algorithm or unsolved()
    plan = more.pop("plan", None) or planned(algorithm)
    x = Exploration(TASK, policy, Corridor, plan, **more)
    results = asyncio.run(explore_group(algorithm.explore, x))
    return Group("g", TASK, plan, "complete", tuple(results), tuple(x.reflections.values()))


def asked(policy: ScriptedPolicy) -> int:
    """How many reflections were asked for."""
    return sum("You review" in prompt for prompt in policy.prompts)


@pytest.mark.parametrize("kind", ["unsolved", ""])
def test_where_none_succeeded_all_are_reflected_on_and_elsewhere_none(kind: str) -> None:
    assert planned(unsolved()) == GroupPlan(4, "unsolved")
    plan = GroupPlan(4, kind)  # also one that a client gave
    failed = explored(policy := learner_of_advice(), plan=plan)
    assert [(t.of, t.pivot) for t in failed.trajectories] == [(-1, -1), (-1, -1), (0, 1), (1, 1)]
    assert failed.rewards.tolist() == [0.0, 0.0, 1.0, 1.0] and asked(policy) == 2
    assert [t.reflection for _, t in failed.retries] == ["reflect-0", "reflect-1"]
    solved = explored(policy := ScriptedPolicy(always_right), plan=plan)
    assert [(t.of, t.reward, t.shown) for t in solved.trajectories] == [(-1, 1.0, None)] * 4
    assert not solved.reflections and not asked(policy)


def test_one_success_among_the_base_attempts_is_enough() -> None:
    opened = []

    def once(prompt: str) -> str:
        door = int(prompt.rpartition("door ")[2].split()[0])
        opened.extend([door] * (door == 1))
        return "x" if door == 1 and len(opened) > 1 else "abc"[door]

    group = explored(policy := ScriptedPolicy(once), unsolved(group_size=6))
    assert [r.of for r in group.results] == [-1] * 6 and not asked(policy)
    assert sorted(group.rewards.tolist()) == [0.0] * 5 + [1.0]


def test_credit_samples_and_gain_follow_the_retries() -> None:
    algorithm, memory = unsolved(), Memory()
    failed = explored(learner_of_advice())
    solved = explored(ScriptedPolicy(always_right))
    masks = [[int(m.sum()) for m in algorithm.masks(g.trajectories)] for g in (failed, solved)]
    assert masks == [[4] * 4, [6] * 4]  # two doors from the pivot on, or all three
    assert algorithm.samples(failed) and not algorithm.samples(solved)
    for group in (failed, solved):
        memory.keep(group)
    assert memory.gains == []
    memory.keep(explored(learner_of_advice(), get(group_size=4)))
    assert memory.gains == [(2.0, 2)]


def test_a_base_attempt_that_could_not_be_played_is_no_success_and_has_no_retry() -> None:
    lost = {0: SlotResult(0, "failed", cause="env")}
    group = explored(learner_of_advice(), results=lost)
    assert [(r.status, r.cause, r.of) for r in group.results] == [
        ("failed", "env", -1), ("done", "", -1), ("failed", "no_base", 0), ("done", "", 1),
    ]  # fmt: skip


def test_a_gate_cannot_measure_where_only_unsolved_groups_are_retried() -> None:
    with pytest.raises(UserError, match="reflect_on=unsolved, which retries only where all"):
        unsolved(gate="measured")

"""The groups of a loop in one process, and what algorithms are told of them."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from r3l.algorithms.guidance_gain import GROUPS
from r3l.records import AttemptKey, Group, GroupPlan, Trajectory
from r3l.training.group_memory import TASK_GROUPS, Memory
from tests.r3l.algorithms.fakes import TASK, get, group_of

Make = Callable[..., Group]


@pytest.fixture
def made(make_trajectory: Callable[..., Trajectory]) -> Make:
    """Makes a group of these rewards."""

    def make(name: str, *rewards: float, task: str = "t") -> Group:
        attempts = [make_trajectory(slot=i, reward=r) for i, r in enumerate(rewards)]
        group = group_of(attempts, name=name)
        return replace(group, task=replace(TASK, task_id=task))

    return make


def names(found: Any) -> list[tuple[str, int]]:
    return [(each.group_id, each.slot) for each in found]


def test_the_history_of_a_task_has_its_attempts_newest_group_first(made: Make) -> None:
    memory = Memory()
    for group in (made("a", 0.0, 1.0), made("b", 0.5), made("c", 1.0, task="other")):
        memory.keep(group)
    assert names(memory.history("t")) == [("b", 0), ("a", 0), ("a", 1)]
    assert names(memory.history("t", without="b")) == [("a", 0), ("a", 1)]
    facts = memory.facts("t")
    assert (facts.task_id, facts.epoch, facts.version) == ("t", 2, 0)
    assert [one.reward for one in facts.history] == [0.5, 0.0, 1.0]
    assert memory.facts("t", epoch=7).epoch == 7 and memory.facts("new").epoch == 0


def test_the_oldest_groups_of_a_task_are_forgotten(made: Make) -> None:
    memory = Memory()
    for number in range(TASK_GROUPS + 3):
        memory.keep(made(f"g{number}", 0.0))
    kept = names(memory.history("t"))
    assert len(kept) == TASK_GROUPS and kept[-1] == ("g3", 0)


def test_attempts_are_handed_out_as_long_as_they_are_kept(made: Make) -> None:
    memory = Memory()
    memory.keep(made("a", 0.0, 1.0))
    plan = GroupPlan(2, handed=(AttemptKey("a", 1), AttemptKey("gone", 0), AttemptKey("a", 9)))
    [handed] = memory.handed(plan, "into")
    assert (handed.into, handed.group_id, handed.trajectory.slot) == ("into", "a", 1)


def test_a_batch_has_the_attempts_that_the_algorithm_recalls(made: Make) -> None:
    memory = Memory()
    failures = made("now", 0.0, 0.0)
    for group in (made("a", 1.0, 0.0), made("b", 1.0, task="other"), failures):
        memory.keep(group)
    memory.version = 3
    batch = memory.batch(get("r3"), [failures])
    assert [(each.into, each.group_id, each.trajectory.slot) for each in batch.recalled] == [
        ("now", "a", 0)
    ]
    assert batch.version == 3 and not memory.batch(get("grpo"), [failures]).recalled


def test_the_newest_gains_are_kept(make_trajectory: Callable[..., Trajectory]) -> None:
    memory = Memory()
    attempts = [make_trajectory(slot=i, reward=0.0) for i in range(2)]
    for number in range(GROUPS + 2):
        again = make_trajectory(slot=2, of=0, pivot=0, reward=float(number))
        memory.keep(group_of([*attempts, again], name=f"g{number}"))
        memory.keep(group_of(attempts, name=f"plain{number}"))
    assert len(memory.gains) == GROUPS and memory.gains[0] == (GROUPS + 1.0, 1)


def test_the_same_seed_gives_the_same_decisions() -> None:
    def drawn(seed: int) -> list[float]:
        memory = Memory(seed)
        return [memory.facts("t").random().random() for _ in range(3)]

    assert drawn(1) == drawn(1) != drawn(2) and len(set(drawn(1))) == 3
    facts = Memory().facts("t")
    assert facts.random().random() == facts.random().random()

"""The groups of a loop in one process, and what algorithms are told of them."""

import asyncio
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from msgspec.structs import replace

from r3l.algorithms.guidance_gain import GROUPS
from r3l.records import AttemptKey, Group, GroupPlan, SlotResult, Task, Trajectory
from r3l.training.group_memory import TASK_GROUPS, Memory
from tests.r3l.algorithms.fakes import TASK, get, group_of

Make = Callable[..., Group]
TASKS = [Task(f"t/{number}", "e", number) for number in range(4)]


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


class Explorer:
    """Explores groups whose rewards are those of `rewards`, one after the other."""

    def __init__(self, make: Make, *rewards: tuple[float, ...]) -> None:
        self.make = make
        self.rewards, self.asked = cycle(rewards), list[str]()
        self.running = self.widest = 0

    async def __call__(self, task: Task) -> Group:
        self.asked.append(task.task_id)
        self.running += 1
        self.widest = max(self.widest, self.running)
        made = self.make(f"g{len(self.asked)}", *next(self.rewards))
        await asyncio.sleep(0)
        self.running -= 1
        return made


def test_groups_that_the_algorithm_refuses_are_replaced_until_the_batch_is_full(made: Make) -> None:
    explore = Explorer(made, (0.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    filled = asyncio.run(Memory().fill(get("dapo"), cycle(TASKS), explore, 3))
    assert [each.group_id for each in filled.batch.groups] == ["g2", "g5", "g8"]
    assert [each.group_id for each in filled.refused] == ["g1", "g3", "g4", "g6", "g7"]
    assert explore.asked == [TASKS[i % 4].task_id for i in range(8)] and explore.widest == 3


def test_an_algorithm_that_admits_everything_gets_one_round(made: Make) -> None:
    explore = Explorer(made, (0.0, 0.0))
    batch, refused = asyncio.run(Memory().fill(get("grpo"), cycle(TASKS), explore, 3))
    assert len(batch.groups) == len(explore.asked) == 3 and not refused


@pytest.mark.parametrize(("rounds", "explored"), [(2, 6), (9, 27)])
def test_a_batch_has_fewer_groups_after_the_last_round(
    made: Make, rounds: int, explored: int
) -> None:
    explore = Explorer(made, (0.0, 0.0))
    filled = asyncio.run(Memory().fill(get("dapo"), cycle(TASKS), explore, 3, rounds=rounds))
    assert not filled.batch.groups and len(filled.refused) == explored


def test_a_batch_has_fewer_groups_if_the_tasks_end(made: Make) -> None:
    explore = Explorer(made, (0.0, 1.0), (0.0, 0.0))
    filled = asyncio.run(Memory().fill(get("dapo"), iter(TASKS), explore, 3))
    assert len(filled.batch.groups) == len(filled.refused) == 2 and len(explore.asked) == 4


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_a_group_without_attempts_is_replaced(made: Make, name: str) -> None:
    failed = Group("g", TASKS[0], GroupPlan(1), "complete", (SlotResult(0, "failed", "reset"),))
    groups = iter([failed, made("good", 0.0, 1.0)])

    async def explore(task: Task) -> Group:
        return next(groups)

    filled = asyncio.run(Memory().fill(get(name), cycle(TASKS), explore, 1))
    assert [each.group_id for each in filled.batch.groups] == ["good"]
    assert filled.refused == [failed]

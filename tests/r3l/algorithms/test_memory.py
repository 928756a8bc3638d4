"""The groups of one process: what the algorithm is told, what is handed out, recalled, replaced."""

import asyncio
from itertools import cycle

import pytest

from r3l.records import AttemptKey, Group, GroupPlan, SlotResult, Task
from r3l.training.group_memory import TASK_GROUPS, Memory
from tests.r3l.algorithms.fakes import get
from tests.r3l.training.fakes import explore_group

TASKS = [Task(f"t/{number}", "e", number) for number in range(4)]


def group(name: str, *rewards: float, retries: tuple[float, ...] = ()) -> Group:
    """Attempts at one task, and retries of the first ones."""
    return explore_group(rewards, retries, group_id=name)


TASK = group("a", 0.0).task.task_id


def test_the_history_of_a_task_begins_with_its_newest_group() -> None:
    memory = Memory()
    for name in ("a", "b"):
        memory.keep(group(name, 0.0, 1.0, retries=(0.5,)))
    known = [(one.group_id, one.slot, one.reward, one.of) for one in memory.history(TASK)]
    each = [(0, 0.0, -1), (1, 1.0, -1), (2, 0.5, 0)]
    assert known == [(name, *rest) for name in ("b", "a") for rest in each]
    assert [one.group_id for one in memory.history(TASK, without="b")] == ["a"] * 3
    assert not [*memory.history("another")]
    facts = memory.facts(TASK)
    assert (facts.epoch, facts.version, facts.gains[0].slots) == (2, 0, 1)


def test_old_groups_of_a_task_are_forgotten() -> None:
    memory = Memory()
    for number in range(TASK_GROUPS + 2):
        memory.keep(group(f"g{number}", 0.0))
    [kept] = memory.groups.values()
    assert [each.group_id for each in (kept[0], kept[-1])] == ["g2", f"g{TASK_GROUPS + 1}"]


def test_an_attempt_is_handed_out_as_long_as_it_is_kept() -> None:
    memory = Memory()
    memory.keep(group("a", 0.0, 1.0))
    plan = GroupPlan(2, handed=(AttemptKey("a", 1), AttemptKey("a", 7), AttemptKey("gone", 0)))
    [handed] = memory.handed(plan, "new")
    assert (handed.into, handed.group_id, handed.trajectory.reward) == ("new", "a", 1.0)


def test_a_batch_has_the_stored_attempts_that_the_algorithm_recalls() -> None:
    memory, algorithm = Memory(), get("arpo")
    memory.version = 3
    for name, rewards in (("old", (0.0, 1.0)), ("new", (0.0, 0.0))):
        memory.keep(group(name, *rewards))
    batch = memory.batch(algorithm, [memory.groups[TASK][-1]])
    [recalled] = batch.recalled
    assert (recalled.into, recalled.group_id) == ("new", "old")
    assert recalled.trajectory.reward == 1.0 and batch.version == 3


def test_the_same_seed_makes_the_same_decisions() -> None:
    first, second, other = (
        [memory.facts("t").random().random() for _ in range(3)]
        for memory in (Memory(1), Memory(1), Memory(2))
    )
    assert first == second != other and len(set(first)) == 3


class Explorer:
    """Explores groups whose rewards are those of `rewards`, one after the other."""

    def __init__(self, *rewards: tuple[float, ...]) -> None:
        self.rewards, self.at, self.asked = cycle(rewards), 0, list[str]()
        self.running = self.widest = 0

    async def __call__(self, task: Task) -> Group:
        self.asked.append(task.task_id)
        self.running += 1
        self.widest = max(self.widest, self.running)
        made = group(f"g{len(self.asked)}", *next(self.rewards))
        await asyncio.sleep(0)
        self.running -= 1
        return made


def test_groups_that_the_algorithm_refuses_are_replaced_until_the_batch_is_full() -> None:
    explore = Explorer((0.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    filled = asyncio.run(Memory().fill(get("dapo"), cycle(TASKS), explore, 3))
    assert [each.group_id for each in filled.batch.groups] == ["g2", "g5", "g8"]
    assert [each.group_id for each in filled.refused] == ["g1", "g3", "g4", "g6", "g7"]
    assert explore.asked == [TASKS[i % 4].task_id for i in range(8)] and explore.widest == 3


def test_an_algorithm_that_admits_everything_gets_one_round() -> None:
    explore = Explorer((0.0, 0.0))
    batch, refused = asyncio.run(Memory().fill(get("grpo"), cycle(TASKS), explore, 3))
    assert len(batch.groups) == len(explore.asked) == 3 and not refused


@pytest.mark.parametrize(("rounds", "explored"), [(2, 6), (9, 27)])
def test_a_batch_has_fewer_groups_after_the_last_round(rounds: int, explored: int) -> None:
    explore = Explorer((0.0, 0.0))
    filled = asyncio.run(Memory().fill(get("dapo"), cycle(TASKS), explore, 3, rounds=rounds))
    assert not filled.batch.groups and len(filled.refused) == explored


def test_a_batch_has_fewer_groups_if_the_tasks_end() -> None:
    explore = Explorer((0.0, 1.0), (0.0, 0.0))
    filled = asyncio.run(Memory().fill(get("dapo"), iter(TASKS), explore, 3))
    assert len(filled.batch.groups) == len(filled.refused) == 2 and len(explore.asked) == 4


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_a_group_without_attempts_is_replaced(name: str) -> None:
    failed = Group("g", TASKS[0], GroupPlan(1), "complete", (SlotResult(0, "failed", "reset"),))
    made = iter([failed, group("good", 0.0, 1.0)])

    async def explore(task: Task) -> Group:
        return next(made)

    filled = asyncio.run(Memory().fill(get(name), cycle(TASKS), explore, 1))
    assert [each.group_id for each in filled.batch.groups] == ["good"]
    assert filled.refused == [failed]

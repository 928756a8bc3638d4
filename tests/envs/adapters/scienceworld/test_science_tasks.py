"""The names, patterns and splits of ScienceWorld's tasks."""

import pytest

from envs.adapters.scienceworld.science_tasks import SPLITS, listed, named, task_of_seed
from envs.base import SPLIT_SIZE
from r3l.errors import UserError

SMALL = ["lifespan-*", "find-*"]


def test_patterns_name_tasks_in_upstreams_order():
    assert named(SMALL) == [name for name in SPLITS if name.startswith(("find-", "lifespan-"))]
    assert named(["melt", "boil"]) == ["boil", "melt"]
    assert named(None) == list(SPLITS) and len(named(["*"])) == 30


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (["find-*", "boyle"], "'boyle' is unknown.* boil"),
        (["lose-*"], r"'lose-\*' is unknown"),
        ("find-*", "must be a list"),
        ([], "must be a list"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(tasks, message):
    with pytest.raises(UserError, match=message):
        named(tasks)


def test_the_splits_are_upstreams_and_share_no_variation():
    tasks = listed(["find-plant"]).listed
    numbers = {split: [task.seed for task in tasks[split]] for split in tasks}
    assert numbers == {
        "train": list(range(150)),
        "warmup": list(range(150, 225)),
        "eval": list(range(225, 300)),
    }
    ids = [task.task_id for split in listed(SMALL).listed.values() for task in split]
    assert len(ids) == len(set(ids)) == 3 * 125 + 4 * 300


def test_other_tasks_can_be_held_out_for_evaluation():
    tasks = listed(["boil"], ["melt", "freeze"]).listed
    assert {task.options["task"] for task in tasks["train"]} == {"boil"}
    assert {task.options["task"] for task in tasks["eval"]} == {"freeze", "melt"}
    assert [len(tasks[split]) for split in ("train", "warmup", "eval")] == [14, 7, 18]
    with pytest.raises(UserError, match="'bail' is unknown"):
        listed(["boil"], ["bail"])


def test_a_seed_alone_names_a_task_of_the_split_that_owns_it():
    tasks = listed(SMALL)
    for number, split in enumerate(("warmup", "train", "eval")):
        count = len(tasks.listed[split])
        found = [task_of_seed(tasks, number * SPLIT_SIZE + n) for n in range(count)]
        assert {task.task_id for task in found} == {task.task_id for task in tasks.listed[split]}
        assert task_of_seed(tasks, number * SPLIT_SIZE + count) == found[0]

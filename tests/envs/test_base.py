"""Where tasks come from: seeds and lists, and the splits between them."""

from collections import Counter

import pytest

from envs import ListedTasks, Task, registry
from envs.base import SPLITS, split_of
from r3l.errors import UserError


def test_tasks_are_stable_and_the_splits_never_share_a_seed():
    source = registry.task_source("workshop")
    assert source.tasks("train", 3)[2].task_id == "workshop/train/000002"
    assert source.tasks("train", 5, seed=3) == source.tasks("train", 5, seed=3)
    assert source.tasks("train", 5, seed=3) != source.tasks("train", 5, seed=4)
    assert source.tasks("train", 6)[4:] == source.tasks("train", 2, start=4)
    seeds = {s: {t.seed for t in source.tasks(s, 5000, seed=7)} for s in SPLITS}
    assert all(len(chosen) == 5000 for chosen in seeds.values())
    assert not seeds["warmup"] & seeds["train"] | seeds["train"] & seeds["eval"]


def test_a_task_source_refuses_an_unknown_split():
    with pytest.raises(UserError, match="split 'test': unknown"):
        registry.task_source("keys").tasks("test", 1)


def test_a_list_of_tasks_refuses_an_unknown_split_and_an_id_that_comes_twice():
    with pytest.raises(UserError, match="split 'training': unknown; choose from warmup, train"):
        ListedTasks({"training": []})
    twice = [Task("t/0", "t", 0), Task("t/1", "t", 1), Task("t/0", "t", 2)]
    with pytest.raises(UserError, match="split train: 2 tasks have the id 't/0'; give each an id"):
        ListedTasks({"train": twice})
    ListedTasks({"train": twice[:2], "eval": twice[:1]})


def test_a_list_of_tasks_has_one_order_per_seed_and_an_end():
    listed = [Task(f"t/{n}", "t", n) for n in range(50)]
    source = ListedTasks({"train": listed})
    first = source.tasks("train", 20)
    assert first + source.tasks("train", 100, start=20) == source.tasks("train", 50)
    assert sorted(t.seed for t in source.tasks("train", 99)) == list(range(50))
    assert first != source.tasks("train", 20, seed=1) and first != listed[:20]
    assert source.tasks("eval", 5) == []


def test_instances_of_a_generator_are_split_by_their_content_a_tenth_each_to_warm_up_and_evaluate():
    owners = Counter(split_of(str(n)) for n in range(10_000))
    assert owners["train"] == pytest.approx(8000, rel=0.05)
    assert owners["eval"] == pytest.approx(1000, rel=0.15)
    assert owners["warmup"] == pytest.approx(1000, rel=0.15)
    assert [split_of(text) for text in ("1, 2, 3", "coin")] == ["train", "train"]  # never changes

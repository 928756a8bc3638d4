"""The metrics of an evaluation, as a report and as scalars."""

import json
import math

import msgspec
import pytest

from envs.evaluation.conversation import Conversation, Turn
from envs.evaluation.metrics import by_task, report, scalars
from learner.metrics.tags import check_tag


def played(task, number=0, reward=0.0, *, steps=2, tokens=10, family="", **more):
    turns = tuple(Turn("o", "a", tokens) for _ in range(steps))
    return Conversation(task, number, family, reward, turns=turns, length=100, **more)


def some_attempts():
    """Two families, two tasks each, two attempts; rewards 1 0 / 0 0 and 1 1 / 1 0."""
    rewards = {"a0": (1, 0), "a1": (0, 0), "b0": (1, 1), "b1": (1, 0)}
    return [
        played(task, n, float(reward), family=task[0], steps=2 + n)
        for task, each in rewards.items()
        for n, reward in enumerate(each)
    ]


def test_metrics_are_means_over_tasks_with_intervals_and_by_family():
    found = report(some_attempts(), [2])
    every = found.all.estimates
    assert every["success"].mean == 0.5 and every["pass@2"].mean == 0.75
    assert found.families["a"].estimates["success"].mean == 0.25
    assert found.families["b"].estimates["pass@2"].mean == 1.0
    assert (every["steps"].mean, every["tokens"].mean, found.all.tasks) == (2.5, 25.0, 4)
    assert 0 < every["success"].low < 0.5 < every["success"].high < 1
    assert "Wilson" in found.interval and "bootstrap" in found.interval


def test_failed_attempts_earn_nothing_and_count_by_cause():
    attempts = [played("t", 0, 1.0), Conversation("t", 1, cause="environment_hang")]
    found = report(attempts).all
    assert found.failed == {"environment_hang": 1}
    assert found.estimates["success"].mean == found.estimates["reward"].mean == 0.5
    assert found.estimates["steps"].mean == 2.0


def test_faults_that_attempts_survived_are_counted():
    assert report([played("t", faults=("scorer_ValueError",) * 2)]).all.faults == {
        "scorer_ValueError": 2
    }


def test_metrics_without_a_played_attempt_are_empty_and_not_an_error():
    found = report([Conversation("t", 0, cause="x")])
    assert found.all.estimates["steps"].mean is None
    assert "nan" not in msgspec.json.encode(found).decode().lower()
    assert not math.isnan(found.all.estimates["success"].high)
    assert json.loads(msgspec.json.encode(report([])))["all"]["tasks"] == 0


def test_scalars_are_listed_tags_and_never_missing():
    attempts = [*some_attempts(), Conversation("c", 0, "c & d", cause="x", faults=("y",))]
    found = scalars(report(attempts))
    for name in found:
        check_tag(f"eval/{name}")
    assert (found["tasks"], found["failed"], found["failed_x"], found["fault_y"]) == (5, 1, 1, 1)
    assert found["success_of_a"] == 0.25 and found["success_of_c_d"] == 0.0
    assert found["success"] == pytest.approx(0.4)
    assert found["success_low"] < found["success"] < found["success_high"]
    assert scalars(report([]))["success"] == 0.0
    assert "pass_at_2" in scalars(report(some_attempts(), [2]))


def test_attempts_are_grouped_by_task_in_their_order():
    attempts = [played("b"), played("a"), played("b", 1)]
    assert [[one.key for one in each] for each in by_task(attempts).values()] == [
        [("b", 0), ("b", 1)],
        [("a", 0)],
    ]

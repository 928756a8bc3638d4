"""Two evaluations compared task by task."""

import json

import pytest

from envs.evaluation.comparison import compare, read_other
from envs.evaluation.conversation import Conversation
from envs.evaluation.evaluation_folder import settings_of, write_evaluation
from envs.evaluation.metrics import report
from r3l.config import load
from r3l.errors import UserError


def attempts(rewards):
    return [Conversation(f"t{n}", 0, reward=reward) for n, reward in enumerate(rewards)]


def settings(*overrides):
    return settings_of(load(None, list(overrides)), model="m", weights="w", split="eval")


def test_tasks_are_counted_by_their_difference_and_the_interval_is_paired():
    here, there = attempts([1.0, 1.0, 0.0, 0.5, 0.0]), attempts([0.0, 1.0, 0.0, 0.2, 0.1])
    found = compare(here, there)
    assert (found["success"].better, found["success"].worse, found["success"].same) == (1, 0, 4)
    assert (found["reward"].better, found["reward"].worse, found["reward"].same) == (2, 1, 2)
    assert found["reward"].difference.mean == pytest.approx(0.24)
    # every task is 0.1 better: unpaired intervals of such rewards would be wide
    small = compare(attempts([0.1, 0.6, 0.9]), attempts([0.0, 0.5, 0.8]))["reward"].difference
    assert small.low == pytest.approx(0.1) and small.high == pytest.approx(0.1)


def test_the_means_of_a_task_are_compared_whatever_the_number_of_its_attempts():
    here = [*attempts([1.0]), Conversation("t0", 1, cause="environment_hang")]
    assert compare(here, attempts([0.0]))["success"].difference.mean == 0.5


def test_an_evaluation_of_other_tasks_is_refused(tmp_path):
    there = attempts([1.0, 0.0])
    write_evaluation(tmp_path, settings("env=keys"), there, report(there))
    assert read_other(tmp_path, {"t0", "t1"}, settings("env=keys", "seed=3")) == there
    with pytest.raises(UserError, match=r"2 tasks, 1 of them among the 2"):
        read_other(tmp_path, {"t0", "t9"}, settings("env=keys"))
    for other in (["env=workshop"], ["env=keys", "env.options.locks=4"]):
        with pytest.raises(UserError, match="another environment or split"):
            read_other(tmp_path, {"t0", "t1"}, settings(*other))
    (tmp_path / "settings.json").write_text(json.dumps({"env": 3}))
    with pytest.raises(UserError, match="another environment or split"):
        read_other(tmp_path, {"t0", "t1"}, settings())

"""What is read of a run for its page."""

import pytest

from launch.inspection.pages.run_data import (
    PAIRS,
    RETRIES,
    points_of,
    read_run,
    tags,
    tasks_before_and_after,
    total,
)
from learner.evaluation.evaluator import Evaluation, keep_evaluation
from learner.evaluation.metrics import report
from r3l.errors import UserError
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import RunFolder
from tests.learner.evaluation.fakes import attempted, turn


def played(*rewards):
    steps = (turn("sees", "says", 3),)
    return [attempted(f"t{n:02}", reward=r, steps=steps, length=6) for n, r in enumerate(rewards)]


def test_a_run_is_read_with_its_tasks_before_and_after_and_its_best_retries(ended):
    data = read_run(RunFolder(ended))
    named = [cause.partition(":")[0] for cause in data.unread]
    assert named == ["evaluation of step 0", "evaluation of step 4"]  # they have no texts
    assert data.config.seed == 7 and data.bytes > 0
    assert len(data.stored.rows) == 40 and len(data.stored.trained) == PAIRS
    task = data.stored.trained[0]
    assert task.when == ("policy 0", "policy 3") and task.before.of < 0
    assert len(data.stored.retries) == RETRIES
    assert all(pair.gain == 1.0 for _, pair in data.stored.retries)
    assert list(points_of(data, "learner/loss")) == [(n, 0.5) for n in (1, 2, 3, 4)]
    assert total(data, "learner/loss") == 2.0 and total(data, "nothing") is None
    assert tags(data) == {"group/success_base", "learner/loss"}


def test_the_first_and_the_last_evaluation_that_can_be_read_are_read(ended):
    for version in (0, 4):
        attempts = played(1.0, 0.0)
        made = Evaluation(version, attempts, report(attempts))
        keep_evaluation(ended, RunConfig(), made)
    assert list(read_run(RunFolder(ended)).evaluated) == [0, 4]
    (ended / "evaluations" / "step-000004" / "results.jsonl").write_bytes(b"\xff{")
    data = read_run(RunFolder(ended))
    assert list(data.evaluated) == [0]
    assert data.unread[0].startswith("evaluation of step 4: report ")


def test_tasks_are_chosen_by_a_rule_better_worse_and_the_same_in_turn():
    before = played(0.0, 0.0, 1.0, 0.5, 0.5, 0.0)
    after = played(1.0, 1.0, 0.0, 0.5, 0.5, 1.0)
    chosen = tasks_before_and_after(before, after, ("a", "b"))
    assert [each.task for each in chosen] == ["t00", "t02", "t03", "t01"]
    assert tasks_before_and_after(before, [], ("a", "b")) == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.yaml"):
        read_run(RunFolder(tmp_path))

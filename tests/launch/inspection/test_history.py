"""What a run's folder says about its past."""

import json

import pytest

from launch.inspection.history import existing_run, read_progress, settings
from learner.run_files import PROGRESS
from r3l.errors import UserError
from tests.launch.inspection.conftest import evaluation, step


def test_a_run_is_found_by_its_name_and_one_that_was_not_started_is_named(ended, monkeypatch):
    monkeypatch.chdir(ended.parent.parent)
    assert existing_run("first").resolve() == existing_run(str(ended)) == ended
    assert settings(ended).seed == 7
    with pytest.raises(UserError, match=r"run runs/second: has no config\.yaml"):
        existing_run("second")


def test_steps_before_which_the_learner_went_back_do_not_count(tmp_path):
    lines = [step(1), step(2), evaluation(2, 0.5), step(3)]
    lines += [{"kind": "again", "step": 1, "time": 1.0, "reached": 3}, step(2), evaluation(2, 0.6)]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "st'
    (tmp_path / PROGRESS).write_text(text)
    steps, evaluations = read_progress(tmp_path)
    assert [line["step"] for line in steps] == [1, 2]
    assert [line["success"] for line in evaluations] == [0.6]
    assert read_progress(tmp_path / "nothing") == ([], [])

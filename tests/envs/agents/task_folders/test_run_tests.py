"""The reward of a Harbor task's tests. test_harbor_tasks.py runs tests for real."""

import json
import os
from pathlib import Path

import pytest

from envs.agents.task_folders.run_tests import TestsFailed as Failed
from envs.agents.task_folders.run_tests import reward_in, stored_result


@pytest.mark.parametrize(
    ("name", "text", "result"),
    [
        ("reward.txt", "1\n", {"reward": 1.0, "parts": {}}),
        ("reward.txt", " 0.25 ", {"reward": 0.25, "parts": {}}),
        ("reward.json", '{"reward": 0.5, "a": 2}', {"reward": 0.5, "parts": {"a": 2.0}}),
        ("reward.json", '{"only": 1}', {"reward": 1.0, "parts": {}}),
        ("reward.json", '{"reward": true}', {"reward": 1.0, "parts": {}}),
        ("reward.json", "0.75", {"reward": 0.75, "parts": {}}),
    ],
)
def test_a_reward_is_read(tmp_path: Path, name: str, text: str, result: object) -> None:
    (tmp_path / name).write_text(text)
    assert reward_in(tmp_path) == result


def test_json_counts_before_text(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1")
    (tmp_path / "reward.json").write_text('{"reward": 0}')
    assert reward_in(tmp_path)["reward"] == 0.0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("reward.txt", ""),
        ("reward.txt", "passed"),
        ("reward.txt", "nan"),
        ("reward.txt", "inf"),
        ("reward.txt", "1.01"),
        ("reward.txt", "-1"),
        ("reward.txt", "1" * 70_000),
        ("reward.json", ""),
        ("reward.json", "{"),
        ("reward.json", "1" * 400),
        ("reward.json", "1" * 5000),
        ("reward.json", "[" * 60_000),
        ("reward.json", "[1]"),
        ("reward.json", "{}"),
        ("reward.json", '{"a": 1, "b": 1}'),
        ("reward.json", '{"reward": "1"}'),
        ("reward.json", '{"reward": null}'),
        ("reward.json", '{"reward": NaN}'),
        ("reward.json", '{"reward": 1e999}'),
        ("reward.json", '{"reward": 2}'),
        ("reward.json", '{"reward": 1, "part": "x"}'),
    ],
)
def test_what_is_no_reward_from_0_to_1_never_pays(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Failed) as raised:
        reward_in(tmp_path)
    assert raised.value.cause == "tests_bad_reward" and name in str(raised.value)
    assert len(str(raised.value)) < 300


def test_no_file_a_link_a_folder_and_a_pipe_are_no_reward(tmp_path: Path) -> None:
    with pytest.raises(
        Failed, match=r"neither /logs/verifier/reward.txt nor reward.json"
    ) as raised:
        reward_in(tmp_path)
    assert raised.value.cause == "tests_no_reward"
    (tmp_path / "real").write_text("1")
    place = tmp_path / "reward.txt"
    for make in (lambda: place.symlink_to("real"), place.mkdir, lambda: os.mkfifo(place)):
        make()
        with pytest.raises(Failed) as raised:
            reward_in(tmp_path)
        assert raised.value.cause == "tests_bad_reward"
        place.rmdir() if place.is_dir() else place.unlink()


def test_the_result_of_harbors_runner_is_read_in_the_same_way(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    assert stored_result(str(file))["failed"] == "harbor_no_result"
    for stored, result in (
        ({"rewards": {"reward": 1, "a": 0.5}}, {"reward": 1.0, "parts": {"a": 0.5}}),
        ({"failed": "harbor_X", "feedback": "why"}, {"failed": "harbor_X", "feedback": "why"}),
    ):
        file.write_text(json.dumps(stored))
        assert stored_result(str(file)) == result
    for rewards in (None, {}, {"reward": 3}):
        file.write_text(json.dumps({"rewards": rewards}))
        assert stored_result(str(file))["failed"] == "tests_bad_reward"

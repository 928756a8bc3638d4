"""Evaluations during a run: requests to the buffer, results, and the best model."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from buffer import BufferStats
from learner.evaluation import evaluator as evaluators
from learner.evaluation.evaluation_folder import read_attempts, read_settings
from learner.evaluation.evaluator import (
    Evaluation,
    Evaluator,
    candidate_folder,
    in_messages,
    keep_evaluation,
    keep_if_best,
    nothing_played,
)
from learner.evaluation.metrics import report
from r3l import notices
from r3l.records import Group, SlotResult, Task
from r3l.run.config import RunConfig, load
from r3l.run.files.run_folder import RunFolder
from tests.learner.evaluation.fakes import attempted
from tests.r3l.training.fakes import explore_group


def tasks(count: int, size: int = 0) -> list[Task]:
    return [Task(f"t{n}", "corridor", n, {"text": "x" * size}) for n in range(count)]


def played(number: int) -> Group:
    return replace(explore_group((1.0,), ()), task=tasks(number + 1)[number])


def evaluation(groups: list[Group], config: RunConfig) -> Evaluation:
    """The evaluation of version 3 that these groups are."""
    client: Any = SimpleNamespace(
        stats=lambda: SimpleNamespace(eval_progress={"eval@3": (5, 5)}, actors={}),
        query=lambda **_: groups,
        add_tasks=lambda *_, **__: 0,
    )
    evaluator = Evaluator(client, config, tasks(5))
    evaluator.start(3)
    [found] = evaluator.collect()
    return found


def test_groups_evicted_before_they_were_read_are_left_out_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure = SlotResult(0, "failed", cause="environment_hang")
    failed = replace(played(3), state="expired", results=(failure,))
    found = evaluation([played(0), played(1), played(2), failed], load()).line.metrics
    assert (found["success"], found["tasks"], found["failed"]) == (0.75, 4, 1)
    assert found["failed_environment_hang"] == 1.0
    assert "1 of 5 groups were evicted" in caplog.text and "retention.grace_s" in caplog.text


def test_every_conversation_of_an_evaluation_is_kept_in_the_run(tmp_path: Path) -> None:
    config = load(None, ["env=keys"])
    found = evaluation([played(n) for n in range(5)], config)
    keep_evaluation(tmp_path, config, found)
    folder = tmp_path / "evaluations" / "step-000003"
    assert read_attempts(folder, "--read") == list(found.attempts) and len(found.attempts) == 5
    assert found.attempts[0].steps[0].action and (folder / "report.json").is_file()
    assert read_settings(folder)["env"]["name"] == "keys"


def test_an_evaluation_that_cannot_be_kept_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "_said", {})
    (tmp_path / "evaluations").write_text("in the way")
    keep_evaluation(tmp_path, load(), evaluation([played(0)], load()))
    assert "could not be written" in capsys.readouterr().err


def test_tasks_are_added_in_messages_within_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tasks(100, size=1000)
    assert list(in_messages(given)) == [given] and list(in_messages([])) == []
    monkeypatch.setattr(evaluators, "MESSAGE_BYTES", 10_000)
    cut = list(in_messages(given))
    assert [task for part in cut for task in part] == given
    assert len(cut) > 10 and all(len(part) > 1 for part in cut[:-1])
    assert [len(part) for part in in_messages(tasks(3, size=20_000))] == [1, 1, 1]


def test_how_far_an_evaluation_is_is_said_while_the_learner_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluators, "SAY_S", -1.0)
    monkeypatch.setattr(evaluators, "POLL_S", 0.0)
    done = iter([3, 3, 5, 5])  # of collect, of wait, and again
    client: Any = SimpleNamespace(
        stats=lambda: SimpleNamespace(eval_progress={"eval@3": (next(done), 5)}, actors={"a": {}}),
        query=lambda **_: [explore_group((1.0,), ())] * 5,
        add_tasks=lambda *_, **__: 0,
    )
    evaluator = Evaluator(client, load(), tasks(5))
    evaluator.start(3)
    assert len(evaluator.wait(lambda: False, lambda: None)) == 1
    assert capsys.readouterr().err == "r3l-notice: evaluation at step 3: 3/5\n"


def test_an_unfinished_evaluation_of_version_0_is_not_taken_up_by_newer_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = {"eval@0": (3, 5), "eval@2": (0, 5), "eval@4": (0, 5)}
    client: Any = SimpleNamespace(stats=lambda: SimpleNamespace(eval_progress=progress))

    def taken_up(version: int) -> dict[str, int]:
        evaluator = Evaluator(client, load(), tasks(5))
        evaluator.take_up(set(), version, tmp_path)
        return evaluator.pending

    candidate_folder(tmp_path, 0).mkdir(parents=True)
    assert taken_up(0) == {"eval@0": 0} and candidate_folder(tmp_path, 0).is_dir()
    assert taken_up(2) == {"eval@2": 2} and not candidate_folder(tmp_path, 0).exists()
    assert "evaluation at step 0: dropped at " in capsys.readouterr().err
    progress["eval@0"] = (5, 5)  # all of it was played with version 0
    assert taken_up(1) == {"eval@0": 0}


def test_an_evaluation_at_several_temperatures_is_one_once_all_its_parts_have_ended(
    tmp_path: Path,
) -> None:
    config = load(None, ["env=keys", "eval.temperatures=[1,0]"])
    progress, asked = {"eval@3": (5, 5), "eval@3@0": (4, 5)}, list[str]()
    lost = {"eval@3": (1.0,), "eval@3@0": (0.0,)}
    client: Any = SimpleNamespace(
        stats=lambda: SimpleNamespace(eval_progress=progress, actors={}),
        query=lambda tag, **_: [
            replace(explore_group(lost[tag], ()), task=task) for task in tasks(5)
        ],
        add_tasks=lambda *_, tag, **__: asked.append(tag),
    )
    evaluator = Evaluator(client, config, tasks(5))
    evaluator.start(3)
    assert asked == ["eval@3", "eval@3@0"] and evaluator.collect() == []
    progress["eval@3@0"] = (5, 5)
    [found] = evaluator.collect()
    assert not evaluator.pending
    metrics = found.line.metrics
    assert (metrics["success"], metrics["temperature_0/success"]) == (1.0, 0.0)
    keep_evaluation(tmp_path, config, found)
    folder = tmp_path / "evaluations" / "step-000003"
    for place, temperature, reward in ((folder, 1.0, 1.0), (folder / "temperature-0", 0.0, 0.0)):
        assert read_settings(place)["temperature"] == temperature
        assert {each.reward for each in read_attempts(place, "--read")} == {reward}


def test_an_evaluation_of_version_0_is_dropped_whole_if_a_part_is_unfinished(
    tmp_path: Path,
) -> None:
    progress = {"eval@0": (5, 5), "eval@0@0": (3, 5), "eval@2": (1, 5), "eval@2@0": (0, 5)}
    client: Any = SimpleNamespace(stats=lambda: SimpleNamespace(eval_progress=progress))
    evaluator = Evaluator(client, load(), tasks(5))
    evaluator.take_up(set(), 2, tmp_path)
    assert evaluator.pending == {"eval@2": 2, "eval@2@0": 2}


NOTHING = BufferStats(
    train={"leased": 3, "expired": 12, "complete": 0},
    eval={"expired": 5},
    drops={"no_trajectories": 17},
    slot_drops={
        "base/environment_KeyError": 130,
        "base/environment_hang": 3,
        "distilled/no_base": 90,
    },
    puts=223,
)
"""A run in which every attempt so far has failed."""


def test_a_run_whose_first_groups_hold_no_attempt_is_told_from_any_other() -> None:
    why = nothing_played(NOTHING, 0)
    assert "first 17 groups hold no attempt" in why
    assert "failed: environment_KeyError (130), environment_hang (3); " in why
    assert nothing_played(NOTHING, 1).startswith("the first 16 groups")
    others: list[dict[str, Any]] = [
        {"puts": 224},  # one attempt was played to its end
        {"eval": {"expired": 5, "complete": 1}},
        {"drops": {"no_trajectories": 17, "stale": 1}},
        {"evicted": 1},
        {"drops": {"no_trajectories": 15}},
    ]
    for other in others:
        assert nothing_played(replace(NOTHING, **other), 0) == ""
    assert nothing_played(NOTHING, 2) == ""  # of an earlier launch, before it was mended


def evaluated(run: Path, version: int, success: float, *, saved: bool = True) -> Evaluation:
    """The evaluation of `version`, whose weights lie among the candidates if `saved`."""
    if saved:
        folder = candidate_folder(run, version)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text(f"weights of {version}")
    attempts = [attempted(f"t{n}", 0, reward=float(n < 10 * success)) for n in range(10)]
    return Evaluation(version, attempts, report(attempts))


def best(run: Path) -> tuple[str, int]:
    """(the weights in `best/`, the version its record names)."""
    record = RunFolder(run).best_evaluation()
    assert record is not None
    return (run / "best" / "model.safetensors").read_text(), record.step


def test_only_more_success_replaces_the_best_model_and_other_candidates_are_removed(
    tmp_path: Path,
) -> None:
    kept = []
    for version, success in ((0, 0.2), (5, 0.2), (10, 0.5), (15, 0.4), (20, 0.6)):
        keep_if_best(tmp_path, evaluated(tmp_path, version, success))
        weights, named = best(tmp_path)
        assert weights == f"weights of {named}"
        kept.append(named)
        assert not list((tmp_path / "candidates").iterdir())
    assert kept == [0, 0, 10, 10, 20]


def test_an_evaluation_without_kept_weights_changes_nothing(tmp_path: Path) -> None:
    keep_if_best(tmp_path, evaluated(tmp_path, 0, 0.2))
    keep_if_best(tmp_path, evaluated(tmp_path, 5, 0.9, saved=False))
    assert best(tmp_path) == ("weights of 0", 0)


@pytest.mark.parametrize("moment", [0, 1])
def test_a_learner_killed_while_replacing_the_best_model_keeps_the_better_one(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_if_best(tmp_path, evaluated(tmp_path, 0, 0.2))
    better, rename, renamed = evaluated(tmp_path, 5, 0.9), Path.rename, []

    def rename_or_die(path: Path, target: Path) -> Path:
        if len(renamed) == moment:
            raise KeyboardInterrupt
        renamed.append(path)
        return rename(path, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", rename_or_die)
        keep_if_best(tmp_path, better)
    keep_if_best(tmp_path, better)
    assert best(tmp_path) == ("weights of 5", 5)
    assert not list((tmp_path / "candidates").iterdir())


def test_the_best_model_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm") / f"best-{os.getpid()}"
    if not elsewhere.parent.is_dir() or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    elsewhere.mkdir()
    (tmp_path / "best").symlink_to(elsewhere)
    try:
        for version, success in ((5, 0.3), (10, 0.5), (15, 0.1)):
            keep_if_best(tmp_path, evaluated(tmp_path, version, success))
        assert best(tmp_path) == ("weights of 10", 10)
        assert (tmp_path / "best").is_symlink() and (elsewhere / "evaluation.json").is_file()
        assert not list((tmp_path / "candidates").iterdir())
    finally:
        shutil.rmtree(elsewhere)


def test_a_best_model_that_cannot_be_kept_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "_said", {})
    (tmp_path / "best").symlink_to(tmp_path / "nowhere" / "at" / "all")
    keep_if_best(tmp_path, evaluated(tmp_path, 5, 0.3))
    assert "could not be replaced" in capsys.readouterr().err

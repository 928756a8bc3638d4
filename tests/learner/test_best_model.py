"""Which of the evaluated weights are kept as the best of a run."""

import os
import shutil
from pathlib import Path

import pytest

from envs.evaluation.conversation import Conversation
from envs.evaluation.metrics import report
from learner.best_model import candidate_folder, keep_if_best
from learner.evaluator import Evaluation
from r3l.files.run_folder import RunFolder


def evaluated(run: Path, version: int, success: float, *, saved: bool = True) -> Evaluation:
    """The evaluation of `version`, whose weights lie among the candidates if `saved`."""
    if saved:
        folder = candidate_folder(run, version)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text(f"weights of {version}")
    attempts = [Conversation(f"t{n}", 0, reward=float(n < 10 * success)) for n in range(10)]
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
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "best").symlink_to(tmp_path / "nowhere" / "at" / "all")
    keep_if_best(tmp_path, evaluated(tmp_path, 5, 0.3))
    assert "not replaced, training continues" in caplog.text

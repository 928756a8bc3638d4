"""TensorBoard's files: what happens to them never ends a run."""

import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learner.metrics.loggers import tensorboard
from learner.metrics.loggers.logger import LoggerContext
from learner.metrics.loggers.tensorboard import TensorBoard
from r3l.config import load

TAG = "learner/loss"


def shown(folder: Path, tag: str = TAG) -> dict[int, float]:
    return {e.step: e.value for e in EventAccumulator(str(folder)).Reload().Scalars(tag)}


def test_a_removed_folder_is_begun_again_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tensorboard"
    board = TensorBoard(LoggerContext(tmp_path, load()))
    board.scalars(1, {TAG: 1.0})
    assert board._writer is not None
    board._writer.flush()  # its thread writes no more while the folder is removed
    shutil.rmtree(folder)
    for version in (2, 3):
        board.scalars(version, {TAG: float(version)})
    board.close()
    assert shown(folder) == {2: 2.0, 3: 3.0}
    assert [r.getMessage().count("was removed") for r in caplog.records] == [1]


def test_curves_of_retries_are_a_run_of_their_own_with_a_colour_of_its_own(tmp_path: Path) -> None:
    board = TensorBoard(LoggerContext(tmp_path, load()))
    board.scalars(1, {"group/success_base": 0.25, "group/success_retry": 0.5})
    board.close()
    for folder, tag in (("", "group/success_base"), ("retry", "group/success_retry")):
        events = EventAccumulator(str(tmp_path / "tensorboard" / folder)).Reload()
        assert events.Tags()["scalars"] == [tag]


def test_a_disk_that_takes_nothing_is_said_once_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(tensorboard.time, "monotonic", lambda: now[0])
    board = TensorBoard(LoggerContext(tmp_path, load()))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(tensorboard.SummaryWriter, "add_scalar", full)
        for version in range(1, 5):
            board.scalars(version, {TAG: 0.0})
    assert [r.getMessage().count("training continues") for r in caplog.records] == [1]
    board.scalars(5, {TAG: 5.0})  # too early
    now[0] += tensorboard.AGAIN_S
    board.scalars(6, {TAG: 6.0})
    board.close()
    assert shown(tmp_path / "tensorboard") == {6: 6.0}


def test_a_folder_that_cannot_be_made_costs_only_what_would_be_in_it(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file in its place")
    board = TensorBoard(LoggerContext(tmp_path, load()))
    board.scalars(1, {TAG: 1.0})
    board.close()


def test_a_folder_of_retries_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "retry").write_text("a file in its place")
    board = TensorBoard(LoggerContext(tmp_path, load()))
    board.scalars(1, {TAG: 1.0})
    board.close()


def test_the_files_of_a_long_run_grow_ever_more_slowly_and_keep_every_evaluation(
    tmp_path: Path,
) -> None:
    board = TensorBoard(LoggerContext(tmp_path, load()))
    for version in (9_999, 10_000, 10_001, 10_010, 100_010, 100_100):
        board.scalars(version, {TAG: float(version)})
        board.scalars(version, {"eval/success": 1.0})
    board.close()
    assert sorted(shown(tmp_path / "tensorboard")) == [9_999, 10_000, 10_010, 100_100]
    assert len(shown(tmp_path / "tensorboard", "eval/success")) == 6
    assert sum(map(tensorboard.shows, range(1, 1_000_001))) == 9_999 + 2 * 9_000 + 1

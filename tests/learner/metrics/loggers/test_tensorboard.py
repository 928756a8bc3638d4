"""TensorBoard's files: what happens to them never ends a run, and what a browser shows of them."""

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from learner.evaluation.evaluator import Evaluation
from learner.evaluation.metrics import report
from learner.metrics.loggers import tensorboard
from learner.metrics.loggers.logger import LoggerContext
from learner.metrics.loggers.tensorboard import TensorBoard, hyperparameters
from learner.metrics.reporter import Reporter
from r3l import notices
from r3l.run.config import load
from tests.buffer.viewer.chromium import Browser, needed
from tests.learner.evaluation.fakes import attempted

TAG = "learner/loss"
TAGS = ("group/success_base", "group/success_retry", "learner/loss")
ALL_TEXT = """(() => {
  const found = [];
  const walk = (node) => {
    if (node.nodeType === 3) found.push(node.textContent);
    if (node.shadowRoot) walk(node.shadowRoot);
    if (!['SCRIPT', 'STYLE', 'TEMPLATE'].includes(node.nodeName)) node.childNodes.forEach(walk);
  };
  if (document.body) walk(document.body);
  return found.join('\\n');
})()"""
"""Everything a page says, also inside its components."""


def shown(folder: Path, tag: str = TAG) -> dict[int, float]:
    return {e.step: e.value for e in EventAccumulator(str(folder)).Reload().Scalars(tag)}


def test_a_removed_folder_is_begun_again_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tensorboard"
    board = TensorBoard(LoggerContext(tmp_path, load()))
    board.scalars(1, {TAG: 1.0})
    board._writers[tensorboard.RUN].flush()  # its thread writes no more while the folder is removed
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


def test_a_run_without_retries_has_no_empty_run_beside_it(tmp_path: Path) -> None:
    board = TensorBoard(LoggerContext(tmp_path, load(None, ["algorithm=grpo"])))
    board.scalars(1, {"group/success_base": 0.25})
    board.close()
    assert not (tmp_path / "tensorboard" / "retry").exists()


def test_a_resumed_run_hides_the_later_retries_of_an_earlier_learner(tmp_path: Path) -> None:
    for start, versions in ((0, (1, 2, 3)), (1, ())):
        board = TensorBoard(LoggerContext(tmp_path, load(), start))
        for version in versions:
            board.scalars(version, {"group/success_retry": 0.5})
        board.close()
    assert list(shown(tmp_path / "tensorboard" / "retry", "group/success_retry")) == [1]


def test_a_disk_that_takes_nothing_is_said_once_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(notices, "_said", {})
    monkeypatch.setattr(tensorboard.time, "monotonic", lambda: now[0])
    board = TensorBoard(LoggerContext(tmp_path, load()))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(tensorboard.SummaryWriter, "add_scalar", full)
        for version in range(1, 5):
            board.scalars(version, {TAG: 0.0})
    assert capsys.readouterr().err.count("tensorboard could not be written") == 1
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
    board.scalars(1, {TAG: 1.0, "group/success_retry": 0.5})
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


def write_run(run: Path, steps: int = 40) -> None:
    """A run whose curves are made up."""
    config = load(None, ["seed=3", "learner.lr=0.25"])
    reporter = Reporter(run, loggers=[TensorBoard(LoggerContext(run, config))])
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        learnt = 1 - np.exp(-step / 15)
        metrics = {tag: float(learnt + 0.05 * rng.normal()) for tag in TAGS}
        values = {"group/rewards": rng.random(50), "group/pivot": rng.integers(0, 9, 50)}
        reporter.step(step, metrics, values)
        if step % 10 == 0:
            attempts = [attempted(f"t{n}", 0, reward=float(n < 10 * learnt)) for n in range(10)]
            reporter.evaluation(Evaluation(step, attempts, report(attempts)).line)
    reporter.close()


def plugin_data(run: Path, tag: str) -> HParamsPluginData:
    loaded = EventMultiplexer().AddRunsFromDirectory(str(run / "tensorboard"))
    loaded.Reload()
    content = loaded.SummaryMetadata(".", tag).plugin_data.content
    return HParamsPluginData.FromString(content)


def test_a_run_holds_its_settings_and_is_compared_by_its_success(tmp_path: Path) -> None:
    write_run(tmp_path, steps=10)
    start = plugin_data(tmp_path, "_hparams_/session_start_info").session_start_info
    assert start.hparams["learner.lr"].number_value == 0.25
    assert start.hparams["algorithm.name"].string_value == "r3l"
    experiment = plugin_data(tmp_path, "_hparams_/experiment").experiment
    assert [info.name.tag for info in experiment.metric_infos] == ["eval/success"]
    assert plugin_data(tmp_path, "_hparams_/session_end_info").session_end_info.status == 1


def test_only_plain_settings_are_compared() -> None:
    values = hyperparameters(LoggerContext(Path(), load(None, ["algorithm=dapo"])).settings)
    assert values["algorithm.name"] == "dapo" and "actor.engine" not in values
    assert [*values][:2] == ["algorithm.name", "learner.lr"]
    assert all(isinstance(value, str | int | float) for value in values.values())


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The address of a TensorBoard that shows a made-up run."""
    needed()
    run = tmp_path_factory.mktemp("run")
    write_run(run)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run / "tensorboard"),
               "--port", "0", "--host", "127.0.0.1", "--load_fast", "false"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = iter(server.stderr.readline, "")
        address = next(found[0] for line in said if (found := re.search(r"http://\S+/", line)))
        drain = threading.Thread(target=server.stderr.read, daemon=True)
        drain.start()
        yield address
        server.terminate()


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("histograms", ["group/rewards", "group/pivot"]),
        ("hparams", ["learner.lr", "eval/success"]),
    ],
)
def test_a_browser_shows_the_pages(board: str, page: str, texts: list[str]) -> None:
    browser = Browser()
    try:
        browser.ask("Page.navigate", url=f"{board}#{page}")
        for text in texts:
            browser.wait(f"{ALL_TEXT}.includes({text!r})")
    finally:
        browser.close()

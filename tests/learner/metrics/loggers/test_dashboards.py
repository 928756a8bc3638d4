"""The dashboards of TensorBoard, as its files hold them and as a browser shows them."""

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from envs.evaluation.conversation import Conversation
from envs.evaluation.metrics import report
from learner.evaluator import Evaluation
from learner.metrics.loggers.dashboards import DASHBOARDS, hyperparameters
from learner.metrics.loggers.logger import LoggerContext
from learner.metrics.loggers.tensorboard import TensorBoard
from learner.metrics.reporter import Reporter
from learner.metrics.tags import METRICS, check_tag
from r3l.config import load
from tests.buffer.viewer.chromium import Browser, needed

TAGS = {tag for charts in DASHBOARDS.values() for tags in charts.values() for tag in tags}
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


def write_run(run: Path, steps: int = 40) -> None:
    """A run whose curves are made up."""
    config = load(None, ["seed=3", "learner.lr=0.25"])
    reporter = Reporter(run, loggers=[TensorBoard(LoggerContext(run, config))])
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        learnt = 1 - np.exp(-step / 15)
        metrics = {tag: float(learnt + 0.05 * rng.normal()) for tag in TAGS - {"eval/success"}}
        values = {"group/rewards": rng.random(50), "group/pivot": rng.integers(0, 9, 50)}
        reporter.step(step, metrics, values)
        if step % 10 == 0:
            attempts = [Conversation(f"t{n}", 0, reward=float(n < 10 * learnt)) for n in range(10)]
            reporter.evaluation(Evaluation(step, attempts, report(attempts)))
    reporter.close()


def tensor(run: Path, tag: str) -> Any:
    """The last value of a tag."""
    loaded = EventMultiplexer().AddRunsFromDirectory(str(run / "tensorboard"))
    loaded.Reload()
    return loaded.Tensors(".", tag)[-1].tensor_proto


def plugin_data(run: Path, tag: str) -> HParamsPluginData:
    loaded = EventMultiplexer().AddRunsFromDirectory(str(run / "tensorboard"))
    loaded.Reload()
    content = loaded.SummaryMetadata(".", tag).plugin_data.content
    return HParamsPluginData.FromString(content)


def test_every_chart_is_of_known_metrics_and_none_of_a_distribution() -> None:
    units = {metric.tag: metric.unit for metric in METRICS}
    for tag in TAGS:
        check_tag(tag)
        assert units.get(tag) not in ("histogram", "text")


def test_a_run_holds_its_dashboards(tmp_path: Path) -> None:
    TensorBoard(LoggerContext(tmp_path, load())).close()
    layout = Layout.FromString(tensor(tmp_path, "custom_scalars__config__").string_val[0])
    assert [category.title for category in layout.category] == list(DASHBOARDS)
    (success,) = [c for c in layout.category[0].chart if "training" in c.title]
    assert list(success.multiline.tag) == ["group/success_base$", "group/success_retry$"]


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
        ("custom_scalars", ["Learning", "Groups and retries", "Staleness", "Throughput"]),
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

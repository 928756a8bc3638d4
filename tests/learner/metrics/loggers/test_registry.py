"""The setting `log`."""

import subprocess
import sys
from pathlib import Path

import pytest

from learner.metrics.loggers import registry
from learner.metrics.loggers.background import Background
from learner.metrics.loggers.logger import Logger, LoggerContext
from learner.metrics.loggers.tensorboard import TensorBoard
from r3l.config import load
from r3l.errors import UserError


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        (["wandbb"], "log wandbb: unknown (did you mean wandb?); the loggers are tensorboard, "),
        (["tensorboard", "tensorboard"], "log tensorboard: named twice"),
    ],
)
def test_a_name_that_is_unknown_or_stands_twice_is_refused(entries: list[str], line: str) -> None:
    with pytest.raises(UserError) as refused:
        registry.check(entries)
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize("name", sorted(set(registry.LOGGERS) - {"tensorboard"}))
def test_a_logger_without_its_package_is_refused_in_one_line_before_anything_starts(
    name: str, tmp_path: Path
) -> None:
    hidden = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        f"names = {{'wandb', 'mlflow', 'trackio'}}\n"
        "importlib.util.find_spec = lambda n, *a: None if n in names else found(n, *a)\n"
        "from launch.cli import main\n"
        f"sys.argv = ['r3l-launch', '--run', {str(tmp_path / 'run')!r}, 'log=[{name}]']\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"r3l-launch: log {name}: ") and "pip install" in ended.stderr
    assert ended.stderr.count("\n") == 1 and not (tmp_path / "run").exists()


def test_what_a_logger_itself_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "check_installed", lambda name, package: None)
    registry.check(["tensorboard", "mlflow:sqlite:////tmp/some.db"])
    with pytest.raises(UserError, match=r"log mlflow: the server .* cannot be"):
        registry.check(["mlflow:http://127.0.0.1:9"])


def test_the_default_is_tensorboard_and_none_may_be_chosen(tmp_path: Path) -> None:
    (board,) = registry.start(LoggerContext(tmp_path, load()))
    assert isinstance(board, TensorBoard)
    board.close()
    assert registry.start(LoggerContext(tmp_path, load(None, ["log=[]"]))) == []


def test_a_service_is_written_to_in_a_thread_with_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Known(Logger):
        def __init__(self, session: LoggerContext) -> None:
            made.append(session.target)

    monkeypatch.setitem(registry.LOGGERS, "known", "nowhere:Known")
    monkeypatch.setattr(registry, "_kind", lambda name: Known)
    (one,) = registry.start(LoggerContext(tmp_path, load(None, ["log=['known:tcp://a:1']"])))
    assert isinstance(one, Background)
    one.close()
    assert made == ["tcp://a:1"]

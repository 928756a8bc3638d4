"""The setting `log`, and loggers that are slow, broken or gone."""

import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from learner.metrics.loggers import registry
from learner.metrics.loggers.logger import Logger, LoggerContext
from learner.metrics.loggers.registry import Background
from learner.metrics.loggers.tensorboard import TensorBoard
from r3l import notices
from r3l.errors import UserError
from r3l.run.config import load


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        (["wandbb"], "log wandbb: unknown (did you mean wandb?)"),
        (["tensorboard", "tensorboard"], "log tensorboard: named twice"),
    ],
)
def test_a_name_that_is_unknown_or_stands_twice_is_refused(entries: list[str], line: str) -> None:
    with pytest.raises(UserError) as refused:
        registry.check_entries(entries)
    assert str(refused.value).startswith(line)


def test_a_logger_without_its_package_is_refused_in_one_line_before_anything_starts(
    tmp_path: Path,
) -> None:
    """One interpreter is told of each in turn."""
    names = sorted(set(registry.LOGGERS) - {"tensorboard"})
    hidden = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "names = {'wandb', 'mlflow', 'trackio'}\n"
        "importlib.util.find_spec = lambda n, *a: None if n in names else found(n, *a)\n"
        "from launch.cli import main\n"
        f"for name in {names}:\n"
        f"    sys.argv = ['r3l-launch', '--run', {str(tmp_path / 'run')!r}, f'log=[{{name}}]']\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as ended:\n"
        "        print(ended.code)\n"
    )
    ended = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True)
    assert ended.stdout.split() == ["2"] * len(names), ended.stderr
    for name, line in zip(names, ended.stderr.splitlines(), strict=True):
        assert line.startswith(f"r3l-launch: log {name}: ") and "pip install" in line
    assert not (tmp_path / "run").exists()


def test_what_a_logger_itself_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "check_installed", lambda name, package: None)
    registry.check_entries(["tensorboard", "mlflow:sqlite:////tmp/some.db"])
    with pytest.raises(UserError, match=r"log mlflow: .*127.0.0.1:9 cannot"):
        registry.check_entries(["mlflow:http://127.0.0.1:9"])


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
    monkeypatch.setattr(registry, "resolve_name", lambda name: Known)
    (one,) = registry.start(LoggerContext(tmp_path, load(None, ["log=['known:tcp://a:1']"])))
    assert isinstance(one, Background)
    one.close()
    assert made == ["tcp://a:1"]


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_said", {})


class Noted(Logger):
    """A logger that notes what it is asked for; fails for version 2."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        self.goes_on.wait(60)
        if version == 2:
            raise ConnectionError("the service is away")
        self.calls.append(version)

    def close(self) -> None:
        self.calls.append("close")


def test_calls_are_done_in_their_order_and_what_fails_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    noted = Noted()
    logger = Background("noted", lambda: noted)
    for version in (1, 2, 2, 3):
        logger.scalars(version, {})
    logger.close()
    assert noted.calls == [1, 3, "close"]
    said = "log noted: could not be written (ConnectionError: the service is away)"
    assert capsys.readouterr().err.count(said) == 1


def test_a_logger_that_cannot_be_made_costs_only_its_metrics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse() -> Logger:
        raise PermissionError("no such key")

    logger = Background("closed", refuse)
    logger.scalars(1, {})
    logger.close()
    said = "log closed: could not be started (PermissionError: no such key)"
    assert said in capsys.readouterr().err


def test_a_logger_that_hangs_delays_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "WAITING", 2)
    monkeypatch.setattr(registry, "CLOSE_S", 0.05)
    noted = Noted()
    noted.goes_on.clear()
    logger = Background("slow", lambda: noted)
    for version in range(10, 20):
        logger.scalars(version, {})
    assert "log slow: is 2 writes behind" in capsys.readouterr().err
    monkeypatch.setattr(notices, "_said", {})
    logger.close()
    assert "log slow: did not end" in capsys.readouterr().err
    noted.goes_on.set()

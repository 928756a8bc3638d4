"""A learner that DeepSpeed's launcher started stops when r3l-launch is gone."""

import subprocess
import sys
import threading

import pytest

from learner import launcher_watch
from learner.launcher_watch import stop_without_launcher
from learner.run_files import LAUNCHER


def test_it_stops_when_the_launcher_is_killed_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher_watch, "LOOKS_S", 0.01)
    stopped = threading.Event()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        monkeypatch.setenv(LAUNCHER, str(launcher.pid))
        stop_without_launcher(stopped.set)
        assert not stopped.wait(0.3)
        launcher.kill()  # a zombie until it is waited for
        assert stopped.wait(60)


def test_it_stops_at_once_if_the_launcher_is_gone_and_never_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = threading.Event()
    monkeypatch.delenv(LAUNCHER, raising=False)
    stop_without_launcher(stopped.set)
    assert not stopped.is_set()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setenv(LAUNCHER, str(gone.pid))
    stop_without_launcher(stopped.set)
    assert stopped.is_set()

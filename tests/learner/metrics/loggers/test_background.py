"""Loggers that are slow, broken or gone."""

import threading
from collections.abc import Mapping

import pytest

from learner.metrics.loggers import background
from learner.metrics.loggers.background import Background
from learner.metrics.loggers.logger import Logger
from r3l.process import notices


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
    monkeypatch.setattr(background, "WAITING", 2)
    monkeypatch.setattr(background, "CLOSE_S", 0.05)
    noted = Noted()
    noted.goes_on.clear()
    logger = Background("slow", lambda: noted)
    for version in range(10, 20):
        logger.scalars(version, {})
    assert "log slow: is 2 writes behind" in capsys.readouterr().err
    monkeypatch.setattr(notices, "_said", {})
    logger.close()
    assert "log slow: did not end within 0.05 s" in capsys.readouterr().err
    noted.goes_on.set()

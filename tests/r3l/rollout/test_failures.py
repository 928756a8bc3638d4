"""The first failure of each cause is explained."""

import logging
from typing import Any

import pytest

from r3l.rollout.failures import FirstFailures
from tests.r3l.fakes import Corridor
from tests.r3l.rollout.fakes import explore, learner_of_advice


class Broken(Corridor):
    """Fails at the second door."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.given:
            raise KeyError("no such door")
        return super().step(action)


def test_the_first_failure_of_each_cause_is_logged_with_its_traceback_and_said_once(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = FirstFailures()
    caplog.set_level(logging.ERROR)
    for _ in range(3):
        explore(learner_of_advice(), make_env=Broken, on_failure=failures)
    [record] = caplog.records
    assert "with environment_KeyError: " in record.getMessage()
    assert "Traceback (most recent call last)" in record.getMessage()
    assert 'raise KeyError("no such door")' in record.getMessage()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("r3l-notice: ") and "counted as environment_KeyError: " in line
    assert f"({__file__}:18); traceback in this log" in line


def test_a_failure_without_user_code_has_the_traceback_of_this_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said: list[str] = []
    failures = FirstFailures(said.append)
    explore(learner_of_advice(), make_env=lambda: Untold(), on_failure=failures)
    assert "tuple of 2 instead of a tuple of 5 " in caplog.text
    assert "env_calls.py" in caplog.text and len(said) == 1


class Untold(Corridor):
    """Answers a step with too little."""

    def step(self, action: str) -> Any:
        return "on", 0.0

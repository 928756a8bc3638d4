"""What all loggers have in common."""

from pathlib import Path

import pytest

from learner.metrics.loggers.logger import LoggerContext, check_installed
from r3l.errors import UserError
from r3l.run.config import load


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it() -> None:
    check_installed("json", "json")
    with pytest.raises(UserError, match=r"^log x: nowhere is not .*'r3l\[x\]"):
        check_installed("x", "nowhere")


def test_settings_are_named_in_full_and_plain() -> None:
    settings = LoggerContext(Path(), load(None, ["learner.lr=0.5", "algorithm=dapo"])).settings
    assert settings["learner.lr"] == 0.5 and settings["algorithm.name"] == "dapo"
    assert "log" not in settings and "env.workers" not in settings

"""What cannot work is refused before anything starts."""

import sys
from pathlib import Path

import pytest

from envs.agents.agent_checks import (
    CALL_FUNCTION,
    interpreter,
    starter_of,
    starter_of_function,
)
from r3l.errors import UserError


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "agent.py"
    file.write_text("import json\nfrom helper import x\ndef play(task):\n    return task\n")
    (tmp_path / "helper.py").write_text("x = 1\n")
    return file


def test_files_of_a_command_become_absolute(script: Path) -> None:
    own = (sys.executable, str(CALL_FUNCTION))
    assert starter_of("python agent.py --fast", "") == (own, (own[0], str(script), "--fast"))
    assert starter_of("agent.py:play", "") == ((*own, f"{script}:play"), ())
    assert starter_of("env agent.py", "")[1][0].endswith("/env")


@pytest.mark.parametrize(
    ("command", "python", "what"),
    [
        ("", "", "command is empty"),
        ("nosuchprogram x", "", "nosuchprogram is not a program"),
        ("python missing.py", "", "missing.py does not exist"),
        ("missing.py:play", "", "the file must exist"),
        ("agent.py:nothing", "", "defines no function nothing"),
        ("python agent.py", "/no/python", "python /no/python is not a program"),
        ("python 'agent.py", "", "No closing quotation"),
        ("python needs.py", "", "imports nosuchpackage, which .* does not have"),
        ("needs.py:play", "", "No module named 'nosuchpackage'"),
        ("python broken.py", "", "cannot be read as Python"),
        ("http://127.0.0.1:1/play", "", "'http://127.0.0.1:1/play' does not answer"),
        ("https://:x/", "", "does not answer"),
    ],
)
def test_what_cannot_run_is_named(script: Path, command: str, python: str, what: str) -> None:
    (script.parent / "needs.py").write_text("import os, nosuchpackage.inner\n")
    (script.parent / "broken.py").write_text("def (\n")
    with pytest.raises(UserError, match=what):
        starter_of(command, python)


def test_a_reward_must_be_a_function(script: Path) -> None:
    with pytest.raises(UserError, match="reward grade: must be"):
        starter_of_function("reward", "grade", "")
    assert interpreter(sys.executable) == sys.executable

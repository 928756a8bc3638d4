"""What cannot work is refused before anything starts."""

import os
import sys
from pathlib import Path

import pytest

from envs.agents.agent_checks import argv_of, argv_of_function, child_environment, interpreter
from r3l.errors import UserError


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "agent.py"
    file.write_text("import json\nfrom helper import x\ndef play(task):\n    return task\n")
    (tmp_path / "helper.py").write_text("x = 1\n")
    return file


def test_files_of_a_command_become_absolute(script: Path) -> None:
    assert argv_of("python agent.py --fast", "") == (sys.executable, str(script), "--fast")
    assert argv_of("agent.py:play", "")[-1] == f"{script}:play"
    assert argv_of("env agent.py", "")[0].endswith("/env")


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
    ],
)
def test_what_cannot_run_is_named(script: Path, command: str, python: str, what: str) -> None:
    (script.parent / "needs.py").write_text("import os, nosuchpackage.inner\n")
    (script.parent / "broken.py").write_text("def (\n")
    with pytest.raises(UserError, match=what):
        argv_of(command, python)


def test_a_reward_must_be_a_function(script: Path) -> None:
    with pytest.raises(UserError, match="reward grade: must be"):
        argv_of_function("reward", "grade", "")
    assert interpreter(sys.executable) == sys.executable


def test_an_agent_gets_the_users_variables_without_those_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/x")
    assert "PYTHONPATH" not in child_environment({})
    assert child_environment({"A": "b"}) == child_environment({}) | {"A": "b"}
    assert child_environment({})["PATH"] == os.environ["PATH"]

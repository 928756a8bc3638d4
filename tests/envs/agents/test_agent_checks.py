"""What cannot work is refused before anything starts."""

import sys
from pathlib import Path

import pytest

from envs.agents.agent_checks import (
    CALL_FUNCTION,
    interpreter,
    keepers_of,
    servers_of,
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
        ("python -X dev missing.py", "", "missing.py does not exist"),
        (f"{sys.executable} missing.py", "", "missing.py does not exist"),
        ("bash missing.sh", "", "missing.sh does not exist"),
        ("python -m nosuchmodule.inner", "", "has no module nosuchmodule.inner"),
        ("python -m helper", "", "has no module helper; install it, or put it into"),
        ("python elsewhere/agent.py", "", "imports helper, which"),
        ("python", "", "names no script"),
        ("missing.py:play", "", "the file must exist"),
        ("agent.py:nothing", "", "defines no function nothing"),
        ("python agent.py", "/no/python", "python: /no/python is not a program"),
        ("python agent.py", "/bin/ls", "python: /bin/ls does not run Python"),
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
    (script.parent / "elsewhere").mkdir()
    (script.parent / "elsewhere" / "agent.py").write_text("import helper\n")
    with pytest.raises(UserError, match=what):
        starter_of(command, python)


def test_a_script_may_lie_in_the_folder_that_each_attempt_gets(script: Path) -> None:
    (script.parent / "given").mkdir()
    (script.parent / "given" / "solve.sh").write_text("true\n")
    assert starter_of("bash solve.sh", "", workspace="given")[1][1:] == ("solve.sh",)
    (script.parent / "given" / "server.py").write_text("")
    assert servers_of({"s": "python -m server"}, "", "given")["s"][1:] == ("-m", "server")
    kept = keepers_of("bash solve.sh", "python -m server", "", "given")
    assert kept["restore"][1:] == ("-m", "server")
    (script.parent / "json").mkdir()  # not the module that the agent's process finds
    assert starter_of("python -m json", "")[1][1:] == ("-m", "json")
    assert starter_of("python -m json.tool", "")[1][1:] == ("-m", "json.tool")
    (script.parent / "conf").mkdir()  # a file's name after another program's -m
    place = str(script.parent / "conf")
    assert starter_of("bash -c true -m conf", "")[1][-1] == place
    assert starter_of("python agent.py -m conf", "")[1][-1] == place
    assert starter_of("env X=1 missing.sh", "")[1][1:] == ("X=1", "missing.sh")


def test_a_reward_must_be_a_function(script: Path) -> None:
    with pytest.raises(UserError, match="reward grade: must be"):
        starter_of_function("reward", "grade", "")
    assert interpreter(sys.executable) == sys.executable


@pytest.mark.parametrize(
    ("code", "what"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("import no_such", "No module named"),
     ("from json import nope", "ImportError"), ("import json; json.loads('{')", "JSONDecodeError"),
     ("x = (", "SyntaxError: .* never closed"), ("raise KeyError('k')", "KeyError: 'k'")],
)  # fmt: skip
def test_what_a_functions_file_raises_is_told_with_its_file_and_line(
    script: Path, code: str, what: str
) -> None:
    script.write_text(f"import json\n\n{code}\n\n\ndef play(task):\n    return 1.0\n")
    with pytest.raises(UserError, match=rf"command .*{what}.* \({script}:3\) \(with "):
        starter_of(f"{script}:play", "")

"""A process of an agent is watched, read and killed with its group."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from envs.agents.agent_checks import CALL_FUNCTION, starter_of_function
from envs.agents.agent_process import AgentProcess, _starters, child_environment
from r3l.errors import EnvironmentFailed


def folder_of(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "stdin").write_text("[]")
    return tmp_path


def wait(process: AgentProcess) -> int | None:
    deadline = time.monotonic() + 120
    while (code := process.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return code


def test_a_program_is_killed_with_what_it_started(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    script = "import subprocess, time\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
    program = (sys.executable, "-c", script + "time.sleep(600)")
    process = AgentProcess((sys.executable, str(CALL_FUNCTION)), program, folder, {})
    while not (line := process.last_line("stdout")):
        time.sleep(0.01)
    assert process.poll() is None
    process.kill()
    _, alive = psutil.wait_procs(
        [psutil.Process(int(line))] if psutil.pid_exists(int(line)) else [], timeout=60
    )
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_function_is_called_in_a_new_process_each_time(tmp_path: Path) -> None:
    folder, file = folder_of(tmp_path), tmp_path / "f.py"
    file.write_text(
        "import os\ndef pid():\n    return os.getpid()\n"
        "def bad():\n    raise SystemExit(3)\ndef worse():\n    raise ValueError('no')\n"
        "def gone():\n    os._exit(7)\ndef crashed():\n    os.abort()\n"
        "def killed():\n    os.kill(os.getpid(), 9)\n"
    )
    argv = starter_of_function("command", f"{file}:pid", "")
    seen = set()
    for _ in range(2):
        process = AgentProcess(argv, (), folder, {"PATH": "/bin"})
        assert wait(process) == 0
        seen.add(process.last_line("stdout"))
    assert len(seen) == 2
    for name, code, line in (("bad", 3, "3"), ("worse", 1, "ValueError: no")):
        process = AgentProcess((*argv[:2], f"{file}:{name}"), (), folder, {})
        assert wait(process) == code and process.last_line("stderr") == line
    for name, code in (("gone", 7), ("crashed", -signal.SIGABRT), ("killed", -signal.SIGKILL)):
        process = AgentProcess((*argv[:2], f"{file}:{name}"), (), folder, {})
        assert wait(process) == code


def test_a_file_that_prints_while_it_is_imported_is_started_like_another(tmp_path: Path) -> None:
    folder, file = folder_of(tmp_path), tmp_path / "f.py"
    file.write_text("print('loaded', flush=True)\ndef one():\n    return 1\n")
    argv = starter_of_function("command", f"{file}:one", "")
    for _ in range(2):
        process = AgentProcess(argv, (), folder, {})
        assert wait(process) == 0 and process.last_line("stdout") == "1"
    process.kill()


def test_a_starter_that_ends_is_named_and_dropped(tmp_path: Path) -> None:
    folder, file = folder_of(tmp_path), tmp_path / "f.py"
    file.write_text("raise SystemExit(0)\n")
    argv = (sys.executable, str(CALL_FUNCTION), f"{file}:one")
    with pytest.raises(EnvironmentFailed, match=r"f\.py:one .*no process") as failed:
        AgentProcess(argv, (), folder, {})
    assert failed.value.cause == "agent_not_started" and argv not in _starters


def test_a_process_that_wrote_its_exit_code_has_ended(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    program = (sys.executable, "-c", "import time; time.sleep(600)")
    process = AgentProcess((sys.executable, str(CALL_FUNCTION)), program, folder, {})
    assert process.poll() is None
    (folder / "exit").write_text("0")
    assert process.poll() == 0
    process.kill()


def test_an_agent_gets_the_users_variables_without_those_that_mislead_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PYTHONPATH", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "/x")
        assert name not in child_environment({})
    assert child_environment({"A": "b"}) == child_environment({}) | {"A": "b"}
    assert child_environment({})["PATH"] == os.environ["PATH"]
    assert "PATH" not in child_environment({}, ["PATH", ""])

"""A process of an agent is watched, read and killed with its group."""

import sys
import time
from pathlib import Path

import psutil

from envs.agents.agent_process import AgentProcess


def folder_of(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "stdin").write_text("[]")
    return tmp_path


def wait(process: AgentProcess) -> int | None:
    deadline = time.monotonic() + 30
    while (code := process.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return code


def test_a_program_is_killed_with_what_it_started(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    script = "import subprocess, time\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
    process = AgentProcess(
        (sys.executable, "-c", script + "time.sleep(600)"), folder, {}, forks=False
    )
    while not (line := process.last_line("stdout")):
        time.sleep(0.01)
    assert process.poll() is None
    process.kill()
    _, alive = psutil.wait_procs(
        [psutil.Process(int(line))] if psutil.pid_exists(int(line)) else [], timeout=10
    )
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_function_is_called_in_a_new_process_each_time(tmp_path: Path) -> None:
    from envs.agents.agent_checks import argv_of_function

    folder, file = folder_of(tmp_path), tmp_path / "f.py"
    file.write_text(
        "import os\ndef pid():\n    return os.getpid()\n"
        "def bad():\n    raise SystemExit(3)\ndef worse():\n    raise ValueError('no')\n"
    )
    argv = argv_of_function("command", f"{file}:pid", "")
    seen = set()
    for _ in range(2):
        process = AgentProcess(argv, folder, {"PATH": "/bin"}, forks=True)
        assert wait(process) == 0
        seen.add(process.last_line("stdout"))
    assert len(seen) == 2
    for name, code, line in (("bad", 3, "3"), ("worse", 1, "ValueError: no")):
        process = AgentProcess((*argv[:2], f"{file}:{name}"), folder, {}, forks=True)
        assert wait(process) == code and process.last_line("stderr") == line

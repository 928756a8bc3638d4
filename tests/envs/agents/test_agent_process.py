"""A process of an agent is watched, read and killed with its group."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from concurrent.futures import Executor
from pathlib import Path
from subprocess import run

import psutil
import pytest

from envs.agents.agent_checks import CALL_FUNCTION, starter_of_function
from envs.agents.agent_process import AgentProcess, _starters, last_error
from envs.agents.opened_folder import OpenedFolder
from r3l.errors import EnvironmentFailed
from tests.processes import lives, without_rights

STARTER = (sys.executable, str(CALL_FUNCTION))


def folder_of(tmp_path: Path) -> OpenedFolder:
    (tmp_path / "work").mkdir()
    return OpenedFolder(tmp_path)


def wait(process: AgentProcess) -> int | None:
    deadline = time.monotonic() + 120
    while (code := process.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return code


def test_a_program_is_killed_with_what_it_started(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    script = "import subprocess, time\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
    program = (sys.executable, "-c", script + "time.sleep(600)")
    process = AgentProcess(STARTER, program, folder, {})
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
        process = AgentProcess(argv, (), folder, {"PATH": "/bin"}, "[]")
        assert wait(process) == 0
        seen.add(process.last_line("stdout"))
    assert len(seen) == 2
    for name, code, line in (("bad", 3, "3"), ("worse", 1, f"ValueError: no ({file}:7)")):
        process = AgentProcess((*argv[:2], f"{file}:{name}"), (), folder, {}, "[]")
        assert wait(process) == code and process.last_line("stderr") == line
    for name, code in (("gone", 7), ("crashed", -signal.SIGABRT), ("killed", -signal.SIGKILL)):
        process = AgentProcess((*argv[:2], f"{file}:{name}"), (), folder, {}, "[]")
        assert wait(process) == code


def test_a_file_that_prints_while_it_is_imported_is_started_like_another(tmp_path: Path) -> None:
    folder, file = folder_of(tmp_path), tmp_path / "f.py"
    file.write_text("print('loaded', flush=True)\ndef one():\n    return 1\n")
    argv = starter_of_function("command", f"{file}:one", "")
    for _ in range(2):
        process = AgentProcess(argv, (), folder, {}, "[]")
        assert wait(process) == 0 and process.last_line("stdout") == "1"
    process.kill()


def test_a_starter_that_ends_is_named_and_dropped(tmp_path: Path) -> None:
    folder, file = folder_of(tmp_path), tmp_path / "f.py"
    file.write_text("raise SystemExit(0)\n")
    argv = (sys.executable, str(CALL_FUNCTION), f"{file}:one")
    with pytest.raises(EnvironmentFailed, match=r"f\.py:one .*no process") as failed:
        AgentProcess(argv, (), folder, {}, "[]")
    assert failed.value.cause == "agent_not_started" and argv not in _starters


def test_a_process_that_wrote_its_exit_code_has_ended(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    program = (sys.executable, "-c", "import time; time.sleep(600)")
    process = AgentProcess(STARTER, program, folder, {})
    assert process.poll() is None
    (tmp_path / "exit").write_text("0")
    assert process.poll() == 0
    (tmp_path / "exit").write_text("what an agent may write")
    assert process.poll() == 1
    process.kill()


LEAVERS = {
    "twenty daemons": """
for n in range(20):
    subprocess.Popen(SLEEP, start_new_session=True)
""",
    "nohup": "subprocess.Popen(['nohup', *SLEEP])",
    "a double fork": """
if not os.fork():
    os.setsid()
    if not os.fork():
        os.execvp(SLEEP[0], SLEEP)
    os._exit(0)
os.wait()
""",
    "a child of a terminal": """
import pty
if not pty.fork()[0]:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execvp(SLEEP[0], SLEEP)
""",
    "no variables": "subprocess.Popen(SLEEP, start_new_session=True, env={})",
    "its wrapper killed": """
subprocess.Popen(SLEEP, start_new_session=True, env={})
ready()
os.kill(os.getppid(), 9)
time.sleep(600)
""",
    "its wrapper stopped": """
subprocess.Popen(SLEEP, start_new_session=True, env={})
ready()
os.kill(os.getppid(), 19)
time.sleep(600)
""",
    "a family in sessions": """
code = "import os, sys; os.setsid(); os.fork() or os.fork(); os.execvp(sys.argv[1], sys.argv[1:])"
subprocess.Popen([sys.executable, "-c", code, *SLEEP])
""",
}
"""What an agent may leave, by what it does."""


def sleepers(seconds: str) -> list[int]:
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).cmdline() == ["sleep", seconds] and lives(pid):
                found.append(pid)
    return found


@pytest.mark.parametrize("early", [False, True], ids=["at its end", "when it is stopped"])
@pytest.mark.parametrize("how", LEAVERS)
def test_all_that_a_process_started_ends_with_it(how: str, early: bool, tmp_path: Path) -> None:
    seconds = str(200_000_000 + os.getpid())
    head = (
        f"import os, signal, subprocess, sys, time\nSLEEP = ['sleep', {seconds!r}]\n"
        "def ready():\n    open('ready', 'w').close()\n"
    )
    script = f"{head}{LEAVERS[how]}\nready()\ntime.sleep({600 * early})\n"
    variables = {"PATH": os.environ["PATH"]}
    argv = (sys.executable, "-c", script)
    process = AgentProcess(STARTER, argv, folder_of(tmp_path), variables)
    deadline = time.monotonic() + 60
    while not (sleepers(seconds) and (tmp_path / "work" / "ready").exists()):
        if process.poll() is not None or time.monotonic() > deadline:
            break  # the wrapper has already ended them
        time.sleep(0.01)
    if not early and "wrapper" not in how:
        assert wait(process) == 0
        assert not sleepers(seconds)  # before anyone is told that it has ended
    process.kill()
    assert not sleepers(seconds)


def test_an_attempt_ends_without_its_neighbours(tmp_path: Path) -> None:
    """Also if the agent has killed its wrapper and its starter."""
    script = (
        "import os, subprocess, sys, time\n"
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)\n"
        "while sys.argv[1] == 'kills' and not os.path.exists('../../begun'): time.sleep(0.01)\n"
        "parent = open(f'/proc/{os.getppid()}/stat').read().split()[3]\n"
        "for pid in (int(parent), os.getppid()) if sys.argv[1] == 'kills' else ():\n"
        "    os.kill(pid, 9)\n"
        "time.sleep(600)\n"
    )
    made = []
    for name in ("kills", "stays"):
        (tmp_path / name).mkdir()
        argv = (sys.executable, "-c", script, name)
        made.append(AgentProcess(STARTER, argv, folder_of(tmp_path / name), {}))
    killer, neighbour = made
    while not (line := neighbour.last_line("stdout")):
        time.sleep(0.01)
    (tmp_path / "begun").touch()
    assert wait(killer) == -signal.SIGKILL
    daemon = int(killer.last_line("stdout"))
    (tmp_path / "next").mkdir()
    following = AgentProcess(STARTER, (sys.executable, "-c", ""), folder_of(tmp_path / "next"), {})
    assert wait(following) == 0
    following.kill()
    assert neighbour.poll() is None and lives(int(line))
    killer.kill()
    neighbour.kill()
    assert not lives(int(line))
    os.kill(daemon, signal.SIGKILL)  # outside a worker it belongs to nobody


def test_what_a_lasting_process_left_lives_until_it_is_killed(tmp_path: Path) -> None:
    script = (
        "import subprocess\n"
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)\n"
    )
    program = (sys.executable, "-c", script)
    process = AgentProcess(STARTER, program, folder_of(tmp_path), {}, lasting=True)
    assert wait(process) == 0
    daemon = int(process.last_line("stdout"))
    (tmp_path / "other").mkdir()
    other = AgentProcess(STARTER, program, folder_of(tmp_path / "other"), {})
    assert wait(other) == 0
    other.kill()
    assert process.leave() and lives(daemon)
    process.kill()
    assert not lives(daemon)


def test_a_lasting_process_that_takes_too_long_is_ended_with_all(tmp_path: Path) -> None:
    program = (
        sys.executable,
        "-c",
        "import os, time; print(os.getpid(), flush=True); time.sleep(600)",
    )
    process = AgentProcess(STARTER, program, folder_of(tmp_path), {}, lasting=True)
    while not (line := process.last_line("stdout")):
        time.sleep(0.01)
    assert not process.leave()
    assert not lives(int(line))


@pytest.mark.parametrize("name", ["stdout", "stderr", "exit"])
@pytest.mark.parametrize("how", ["mkfifo", "/dev/zero", "mkdir", "gone"])
def test_what_an_agent_puts_in_place_of_its_files_is_not_read(
    name: str, how: str, tmp_path: Path
) -> None:
    """A FIFO would be read for ever, and /dev/zero until memory has run out."""
    place = f"'../{name}'"
    made = {
        "mkfifo": f"os.mkfifo({place})",
        "/dev/zero": f"os.symlink('/dev/zero', {place})",
        "mkdir": f"os.mkdir({place})",
        "gone": "pass",
    }[how]
    script = f"import os\nprint(0.5, flush=True)\nos.unlink({place})\n{made}\n"
    process = AgentProcess(STARTER, (sys.executable, "-c", script), folder_of(tmp_path), {})
    assert wait(process) == 0
    assert process.state().stdout == "0.5"
    process.kill()


def run_fenced(script: str, folder: Path, *, fenced: bool = True) -> AgentProcess:
    folder.mkdir()
    argv = (sys.executable, "-c", script)
    return AgentProcess(STARTER, argv, folder_of(folder), {"KEY": "mine"}, fenced=fenced)


def scopes_of_landlock() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(444, None, 0, 1) >= 6)


def test_a_fenced_agent_reads_and_signals_no_neighbour(tmp_path: Path) -> None:
    if not scopes_of_landlock():
        pytest.skip("this kernel has no scopes of Landlock")
    neighbour = run_fenced("import time; time.sleep(600)", tmp_path / "a")
    script = f"""
import os
seen = []
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) != os.getpid():
        for name in ("environ", "mem", "fd/0", "cwd"):
            try:
                os.close(os.open(f"/proc/{{pid}}/{{name}}", os.O_RDONLY))
                seen.append((pid, name))
            except OSError:
                pass
for pid in ({neighbour.pid}, os.getppid()):
    try:
        os.kill(pid, 0)
        seen.append((pid, "signal"))
    except PermissionError:
        pass
print(seen)
"""
    process = run_fenced(script, tmp_path / "b")
    assert wait(process) == 0
    assert process.last_line("stdout") == "[]"
    free = run_fenced(script, tmp_path / "c", fenced=False)
    assert wait(free) == 0 and str(neighbour.pid) in free.last_line("stdout")
    for each in (neighbour, process, free):
        each.kill()


def test_the_pipes_of_a_process_close_when_it_closes_them(tmp_path: Path) -> None:
    """Its wrapper holds no copy, so a server of MCP that stops to answer is noticed."""
    script = "import os, time\nos.write(1, b'x')\nos.close(1)\ntime.sleep(600)\n"
    argv = (sys.executable, "-c", script)
    process = AgentProcess(STARTER, argv, folder_of(tmp_path), {}, pipes=True)
    written = os.open(tmp_path / "stdin", os.O_RDWR)
    with open(tmp_path / "stdout", "rb") as said:
        assert said.read() == b"x"
    assert process.poll() is None
    os.close(written)
    process.kill()


def test_an_ordinary_users_agent_is_fenced_too(tmp_path: Path) -> None:
    """Who has no right of root gives up the way to gain one."""
    if not scopes_of_landlock():
        pytest.skip("this kernel has no scopes of Landlock")
    script = f"""
import sys, time
from pathlib import Path
from tests.envs.agents.test_agent_process import run_fenced, wait

folder = Path({str(tmp_path)!r})
code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
sleeper = run_fenced(code, folder / "a")
while not (pid := sleeper.last_line("stdout")):
    time.sleep(0.01)
look = f"print('KEY=mine' in open('/proc/{{pid}}/environ').read())"
for fenced in (True, False):
    process = run_fenced(look, folder / str(fenced), fenced=fenced)
    assert wait(process) is not None
    print(process.last_line("stdout"), process.last_line("stderr").partition(":")[0])
    process.kill()
sleeper.kill()
"""
    assert without_rights(script).split() == ["PermissionError", "True"]


NESTED = """
import json
def grade(text):
    return json.loads(text)
grade("x")
"""
LONG = """
raise ValueError("1 value is wrong\\n  answer\\nFor further information visit a page")
"""
GROUP = """
import asyncio
async def boom():
    raise KeyError("order")
async def main():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(boom())
asyncio.run(main())
"""
TRACEBACK = """Traceback (most recent call last):
  File "{}", line 3, in f
    f()
OSError: no
"""


@pytest.mark.parametrize(
    ("source", "said", "line"),
    [
        (NESTED, "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", 4),
        (LONG, "ValueError: 1 value is wrong … For further information visit a page", 2),
        (GROUP, "KeyError: 'order'", 4),
    ],
)
def test_an_exception_is_named_with_the_line_of_the_users_code(
    source: str, said: str, line: int, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    ended = run([sys.executable, file], capture_output=True, text=True, check=False)
    assert last_error(ended.stderr) == f"{said} ({file}:{line})"


def test_an_output_without_a_traceback_is_its_last_line() -> None:
    assert last_error("loading\nno such order\n\n") == "no such order"
    assert last_error(" \n") == ""


def test_a_library_without_a_caller_in_the_users_code_has_no_place() -> None:
    file = sys.modules[Executor.__module__].__file__
    text = (
        f'Traceback (most recent call last):\n  File "{file}", line 3, in f\n    f()\nOSError: no\n'
    )
    assert last_error(text) == "OSError: no"
    assert last_error(text.replace(str(file), "/a/lib/python3.13/site-packages/b.py")) == (
        "OSError: no"
    )


def test_what_a_program_says_after_a_traceback_is_kept() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    f()\nOSError: no\n'
    )
    assert last_error(text + "giving up\n") == "OSError: no … giving up (/a/b.py:3)"

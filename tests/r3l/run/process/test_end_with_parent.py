"""Processes that end with the one that started them, however that ends."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from r3l.run.process.end_with_parent import STARTER, name_starter
from tests.processes import lives, without_rights

PARENT = """
import multiprocessing, os, time
from r3l.run.process.end_with_parent import end_with_starter

def child(said):
    {call}
    said.put(os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    spawn.Process(target=child, args=(said,)).start()
    print(said.get(), flush=True)
    time.sleep(600)
"""


def child_after_its_parent(tmp_path: Path, call: str) -> psutil.Process:
    """The child of a process that is killed as soon as the child runs."""
    program = tmp_path / "parent.py"
    program.write_text(textwrap.dedent(PARENT.format(call=call)))
    parent = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    return child


def test_a_child_is_killed_with_the_process_that_started_it(tmp_path: Path) -> None:
    psutil.wait_procs(
        [child := child_after_its_parent(tmp_path, "end_with_starter()")], timeout=120
    )
    assert not lives(child)


def test_a_process_that_multiprocessing_did_not_start_keeps_running() -> None:
    program = "from r3l.run.process.end_with_parent import end_with_starter; end_with_starter()"
    stranger = os.environ | {STARTER: "1"}  # a process that is not its parent
    assert subprocess.run([sys.executable, "-c", program], env=stranger).returncode == 0


def test_a_starter_is_named_to_the_processes_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STARTER, "")
    name_starter()
    program = f"import os; print(os.environ[{STARTER!r}], os.getppid())"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    named, parent = said.stdout.split()
    assert named == parent


def test_a_hidden_process_shows_its_variables_to_no_other_one_but_its_programs_do() -> None:
    script = """
import os, subprocess, time
from r3l.run.process.end_with_parent import hide
hide()
fork = os.fork()
if not fork:
    time.sleep(600)
program = subprocess.Popen(["sleep", "600"])
look = "import sys; print(len(open(f'/proc/{sys.argv[1]}/environ').read()) > 0)"
for pid in (os.getpid(), fork, program.pid):
    command = ["python3", "-c", look, str(pid)]
    print(subprocess.run(command, capture_output=True, text=True).stdout.strip() or "hidden")
    if pid != os.getpid():
        os.kill(pid, 9)
"""
    assert without_rights(script).split() == ["hidden", "hidden", "True"]

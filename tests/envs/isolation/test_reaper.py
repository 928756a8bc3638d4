"""The reaper of a worker ends as the worker did, after everything that the worker started."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.system

REAPER = """
import os, signal, subprocess, sys, tempfile
from envs.isolation import reaper, worker
def work():
    tempfile.mkstemp(dir=tempfile.mkdtemp())
    os.chdir(tempfile.gettempdir())
    for _ in range(1500):  # deeper than a function may call itself
        os.mkdir("d")
        os.chdir("d")
    helpers = [subprocess.Popen(["sleep", "3600"], start_new_session=new) for new in (0, 1)]
    os.write(2, f"{os.getpid()} {helpers[0].pid} {helpers[1].pid}\\n".encode())
    exec(sys.argv[1])
worker.main = work
reaper.main(os.getppid())
os._exit(0)
"""


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
        ("os.killpg(0, signal.SIGTERM)", -signal.SIGTERM),  # not the reaper's group
    ],
)
def test_it_ends_with_the_code_of_its_worker_and_leaves_neither_helper_nor_file(
    action: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", REAPER, f"input(); {action}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stderr is not None and started.stdin is not None
        processes = [psutil.Process(int(pid)) for pid in started.stderr.readline().split()]
        assert len(processes) == 3 and all(process.is_running() for process in processes)
        (folder,) = tmp_path.iterdir()
        assert len(list(folder.iterdir())) == 2
        started.stdin.write("\n")
        started.stdin.flush()
        assert started.wait(60) == code
    assert not any(process.is_running() for process in processes) and not list(tmp_path.iterdir())


def test_it_ends_all_when_it_is_asked_to_even_a_stopped_worker() -> None:
    command = [sys.executable, "-c", REAPER, "os.kill(os.getpid(), signal.SIGSTOP)"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        processes = [psutil.Process(int(pid)) for pid in started.stderr.readline().split()]
        started.terminate()
        assert started.wait(60) == -signal.SIGKILL
    assert not any(process.is_running() for process in processes)


def test_it_does_not_begin_without_its_actor() -> None:
    done = subprocess.run([sys.executable, "-m", "envs.isolation.reaper", "1"], timeout=60)
    assert done.returncode == -signal.SIGTERM

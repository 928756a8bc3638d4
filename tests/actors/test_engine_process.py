"""The fork of an actor's process in which its engine runs."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from actors import engine_process
from tests.buffer.fakes import until
from tests.processes import lives

PARENT = """
import os, socket, sys, time
from actors.engine_process import forked

def engine():
    if (worker := os.fork()) == 0:
        time.sleep(600)
    print(os.getpid(), worker, flush=True)
    time.sleep(600)

with forked():
    if os.fork() == 0:
        engine()
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ran before in this process, it can be forked."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)


def test_an_engine_and_what_it_forks_are_killed_with_the_actor() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as actor:
        assert actor.stdout is not None
        left = [psutil.Process(int(pid)) for pid in actor.stdout.readline().split()]
        actor.kill()
    assert len(left) == 2
    until(lambda: not any(map(lives, left)))


def test_an_engine_has_none_of_the_connections_of_its_actor_but_its_own(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with engine_process.forked():
        own = os.open(tmp_path / "said", os.O_RDWR | os.O_CREAT)
        if (child := os.fork()) == 0:
            names = [os.readlink(f"/proc/self/fd/{fd}") for fd in (reading, writing, own)]
            os.write(own, "\n".join(names).encode())
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "said").read_text().splitlines() == [
        os.devnull,
        os.devnull,
        str(tmp_path / "said"),
    ]
    for descriptor in (reading, writing, own):
        os.close(descriptor)


def test_an_engine_keeps_the_files_of_the_gpu_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "GPU_DRIVER", str(tmp_path / "nvidia"))
    driver = os.open(tmp_path / "nvidiactl", os.O_RDWR | os.O_CREAT)
    with engine_process.forked():
        if (child := os.fork()) == 0:
            os.write(driver, b"here")
            os._exit(0)
    os.waitpid(child, 0)
    os.close(driver)
    assert (tmp_path / "nvidiactl").read_bytes() == b"here"


def test_asking_for_a_gpu_does_not_open_it() -> None:
    """A process that opened it cannot fork an engine that computes on it."""
    asked = "import os, actors.engine_process; print(os.environ['PYTORCH_NVML_BASED_CUDA_CHECK'])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, timeout=60)
    assert done.stdout.split() == [b"1"], done.stderr


def test_a_process_that_computes_with_several_threads_is_not_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setenv(engine_process.METHOD, "spawn")
    with engine_process.forked():
        assert os.environ[engine_process.METHOD] == "spawn"


THREADS = """
import os, torch
from actors.engine_process import forked, leave_threads_to_engine

def computed():
    torch.ones(500, 500) @ torch.ones(500, 500)
    return torch.get_num_threads()

torch.set_num_threads(3)
leave_threads_to_engine()
assert computed() == 1
with forked():
    if (child := os.fork()) == 0:
        os._exit(computed())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), computed())
"""


def test_a_forked_engine_gets_the_threads_that_its_actor_did_not_use() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, timeout=120)
    assert done.stdout.split() == [b"3", b"3"], done.stderr


def test_a_process_in_a_process_group_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setenv(engine_process.METHOD, "spawn")
    with engine_process.forked():
        assert os.environ[engine_process.METHOD] == "spawn"


def test_other_forks_keep_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine_process.METHOD, "spawn")
    reading, writing = os.pipe()
    with engine_process.forked():
        assert os.environ[engine_process.METHOD] == "fork"
    assert os.environ[engine_process.METHOD] == "spawn"
    if (child := os.fork()) == 0:
        os.write(writing, b"here")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 9) == b"here"
    os.close(reading)
    os.close(writing)

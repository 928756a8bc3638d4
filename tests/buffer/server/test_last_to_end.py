"""When a service ends: after the learner if its starter was killed, at once otherwise."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from buffer import BufferClient
from buffer.server import last_to_end
from buffer.server.last_to_end import has_learner, learner_lives
from tests.buffer.fakes import until
from tests.processes import lives

pytestmark = pytest.mark.system

STARTER = """
import ctypes, signal, subprocess, sys, threading, time
for _ in range(200):  # which are there for a moment longer than the first thread
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
dies = lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM)
subprocess.Popen([sys.executable, "-m", "buffer.cli", "serve", *sys.argv[1:]], preexec_fn=dies)
time.sleep(600)
"""


@pytest.fixture
def started(tmp_path: Path):
    """Starts a service by a process that may be killed; returns both and the endpoint."""
    starters = []

    def start(*options: str) -> tuple[subprocess.Popen[str], psutil.Process, str]:
        command = [sys.executable, "-c", STARTER, "--store", str(tmp_path / "store")]
        command += ["--bind", "tcp://127.0.0.1:0", *options, "buffer.map_gib=0.25"]
        starters.append(starter := subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert starter.stdout is not None
        endpoint = starter.stdout.readline().removeprefix("r3l-buffer ready ").strip()
        [service] = psutil.Process(starter.pid).children()
        return starter, service, endpoint

    yield start
    for starter in starters:
        starter.kill()
        starter.communicate(timeout=60)  # until the service has closed its end


def test_a_service_whose_starter_was_killed_ends_after_the_learner(started, tmp_path: Path) -> None:
    file = tmp_path / ".learner"
    starter, service, endpoint = started("--outlive", str(file))
    with BufferClient(endpoint, timeout_s=60) as client:
        with learner_lives(file):
            starter.kill()
            starter.wait()
            until(lambda: service.ppid() != starter.pid)
            for _ in range(20):
                assert client.stats().puts == 0
        until(lambda: not lives(service))


@pytest.mark.parametrize("how", ["no learner", "second signal", "starter lives"])
def test_nothing_else_makes_it_wait(started, tmp_path: Path, how: str) -> None:
    file = tmp_path / ".learner"
    starter, service, _ = started("--outlive", str(file))
    with holding(tmp_path / "other" if how == "no learner" else file):
        if how == "starter lives":
            service.send_signal(signal.SIGTERM)
        else:
            starter.kill()
            starter.wait()
        until(lambda: not lives(service) or (how == "second signal" and service.terminate()))


def test_after_the_deadline_a_stopped_learner_is_killed_and_no_other_process(
    tmp_path: Path,
) -> None:
    file = tmp_path / ".learner"
    program = """
import os, signal, sys, time
from pathlib import Path
from buffer.server.last_to_end import stop_on_signals
os.getppid = lambda: 0 if asked else 1
asked = []
stop_on_signals(lambda: os._exit(7), Path(sys.argv[1]), deadline_s=0.5)
asked.append(1)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
"""
    with holding(file) as learner, holding(tmp_path / "other") as other:
        with file.open() as read:
            backup = subprocess.Popen(["sleep", "600"], stdin=read)
        os.kill(learner.pid, signal.SIGSTOP)
        service = subprocess.run([sys.executable, "-c", program, str(file)], check=False)
        assert service.returncode == 7
        assert learner.wait(timeout=60) == -signal.SIGKILL and other.poll() is None
        only_reads = backup.poll() is None
        backup.kill()
        backup.wait()
        assert only_reads


def test_a_starter_that_vanishes_while_it_is_looked_at_is_gone(monkeypatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    monkeypatch.setattr(last_to_end.os, "getppid", lambda: ended.pid)
    assert last_to_end._ends(ended.pid)


@contextmanager
def holding(file: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock as a learner does."""
    program = (
        "import sys, time; from pathlib import Path\n"
        "from buffer.server.last_to_end import learner_lives\n"
        "with learner_lives(Path(sys.argv[1])): print('up', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "up\n"
    yield holder
    holder.kill()
    holder.communicate()


def test_the_lock_ends_with_its_process_and_is_not_inherited(tmp_path: Path) -> None:
    file = tmp_path / ".learner"
    assert not has_learner(file)
    program = (
        "import subprocess, sys; from pathlib import Path\n"
        "from buffer.server.last_to_end import learner_lives\n"
        "with learner_lives(Path(sys.argv[1])):\n"
        "    subprocess.Popen(['sleep', '600'], start_new_session=True); print('up', flush=True)\n"
        "    import time; time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "up\n"
    [child] = psutil.Process(holder.pid).children()
    assert has_learner(file)
    holder.kill()
    holder.wait()
    assert not has_learner(file) and child.is_running()
    os.kill(child.pid, signal.SIGKILL)

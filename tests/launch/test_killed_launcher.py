"""A launcher that is killed or asked to end twice: real buffers, scripts in place of the others."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from r3l.run.files.run_folder import RunFolder
from tests.launch.fakes import until
from tests.processes import lives

pytestmark = pytest.mark.system

LEARNER = """
import json, os, signal, sys, time
from pathlib import Path
from buffer import BufferClient
from r3l.run.files.run_folder import ProcessStatus, RunFolder

run, ended = Path(sys.argv[2]), []
with BufferClient(sys.argv[1], timeout_s=60) as client:
    signal.signal(signal.SIGTERM, lambda *_: ended.append(time.time()))
    RunFolder(run).report("learner", ProcessStatus("ready", "tcp://127.0.0.1:2"))
    while not ended:
        time.sleep(0.05)
    while not (run / "may-save").exists():  # the rest of a step
        time.sleep(0.05)
    client.stats()  # its commit
    (run / "saved").write_text(json.dumps({"signals": len(ended)}))
"""
NAMES = ("keeper", "buffer", "learner", "actor-0", "actor-1")
"""The launcher's children in the order of their start."""
LAUNCHER = f"""
import sys
from pathlib import Path
from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Command
from launch.supervisor import Run
from r3l.run.config import dump
from tests.launch.fakes import Played, plan_for, reports

class Real(Played):
    def buffer(self):
        return ProcessCommands.buffer(self)

    def learner(self):
        words = [sys.executable, "-c", {LEARNER!r}, self.buffer_endpoint, str(self.plan.run)]
        return Command(words)

    def actor(self, index):
        ready = reports(self.plan.run, f"actor-{{index}}")
        words = [sys.executable, "-c", f"{{ready}}; import time; time.sleep(600)"]
        return Command(words, at_once=True)

folder = Path(sys.argv[1])
plan = plan_for(folder, "buffer.map_gib=0.25", "buffer.lease_s=600", "learner.hang_s=10", actors=2)
(folder / "config.yaml").write_text(dump(plan.config))
sys.exit(Run(plan, lambda line: print(line, flush=True), Real(plan)).execute())
"""


def launched(folder: Path) -> tuple[subprocess.Popen[str], dict[str, psutil.Process]]:
    """A launcher whose parts all run, and those by name."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    run = RunFolder(folder)
    until(lambda: all(run.status_of(name) for name in ("actor-0", "actor-1", "buffer", "learner")))
    parts = psutil.Process(launcher.pid).children()
    return launcher, dict(zip(NAMES, parts, strict=True))


def test_after_a_killed_launcher_the_learner_saves_with_a_buffer_and_a_stopped_actor_is_gone(
    tmp_path: Path,
) -> None:
    launcher, parts = launched(tmp_path)
    parts["actor-0"].suspend()
    launcher.kill()
    launcher.communicate()
    until(lambda: not lives(parts["actor-0"]) and not lives(parts["actor-1"]))
    assert not (tmp_path / "saved").exists() and lives(parts["buffer"])
    (tmp_path / "may-save").touch()
    until(lambda: not lives(parts["buffer"]))
    assert (tmp_path / "saved").exists()
    until(lambda: not lives(parts["learner"]))


def test_after_a_killed_launcher_a_stopped_learner_continues_and_saves(tmp_path: Path) -> None:
    launcher, parts = launched(tmp_path)
    (tmp_path / "may-save").touch()
    parts["learner"].suspend()
    launcher.kill()
    launcher.communicate()
    until(lambda: not any(lives(part) for part in parts.values()))
    assert (tmp_path / "saved").exists()


@pytest.mark.nightly
def test_after_a_killed_launcher_a_learner_that_stays_stopped_is_gone_too(tmp_path: Path) -> None:
    launcher, parts = launched(tmp_path)
    parts["learner"].suspend()
    launcher.kill()
    launcher.communicate()

    def all_gone_but_the_learner_was_stopped_again() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            parts["learner"].suspend()
        return not any(lives(part) for part in parts.values())

    until(all_gone_but_the_learner_was_stopped_again)
    assert not (tmp_path / "saved").exists()
    said = (tmp_path / "logs" / "keeper.log").read_text(encoding="utf-8")
    assert "learner has not ended" in said


def test_two_sigterms_close_a_run_as_one_does(tmp_path: Path) -> None:
    launcher, parts = launched(tmp_path)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.stdout is not None
    assert any("SIGTERM: stopping" in line for line in iter(launcher.stdout.readline, ""))
    for _ in range(5):
        os.kill(launcher.pid, signal.SIGTERM)
    (tmp_path / "may-save").touch()
    said, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 130 and "SIGTERM: stopping" not in said, said
    assert "killed after the deadline" not in said
    assert not any(lives(part) for part in parts.values())
    assert json.loads((tmp_path / "saved").read_text()) == {"signals": 1}

"""A run's processes end in order, by the keeper if the launcher is gone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launch.backends import run_keeper
from launch.backends.run_keeper import KeptProcess, end_in_order, tell_keeper
from r3l.run.process.last_heartbeat import HEARTBEAT, LastHeartbeat
from tests.processes import lives

pytestmark = pytest.mark.system

KEEPER = "from launch.backends import run_keeper; run_keeper.DEADLINE_S = {}; run_keeper.main()"
PROCESS = """
import signal, sys, time
from pathlib import Path
folder, name, takes_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
def end(*_):
    (folder / f"{name}.asked").write_text(str(time.monotonic()))
    time.sleep(takes_s)
    (folder / f"{name}.ended").write_text(str(time.monotonic()))
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""
"""A process that notes when it was asked to end, and when it did."""


class Launcher:
    """This process in the place of a launcher; `gone` closes its end of the pipe to the keeper."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        self.keeper = subprocess.Popen(["true"])

    def begin(self, deadline_s: float) -> None:
        command = [sys.executable, "-c", KEEPER.format(deadline_s), str(self.folder), "0"]
        pipe = subprocess.PIPE
        self.keeper = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=self.folder)
        self.started.append(self.keeper)

    def start(self, name: str, takes_s: float = 0.0, *, told: bool = True, **row: object) -> int:
        arguments = [str(self.folder), name, str(takes_s)]
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, *arguments],
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd=row.pop("cwd", self.folder),  # type: ignore[call-overload]
        )
        self.started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        if told:
            self.tell(name, process.pid, **row)
        return int(process.pid)

    def tell(self, name: str, pid: int | None, **row: object) -> None:
        assert self.keeper.stdin is not None
        known: dict[str, object] = {"worker": (), "at_once": False}
        tell_keeper(self.keeper.stdin.fileno(), name, pid, **known | row)  # type: ignore[arg-type]

    def gone(self) -> str:
        """What the keeper says until it ends."""
        said, _ = self.keeper.communicate(timeout=120)
        return str(said.decode())

    def noted(self, name: str, what: str) -> float:
        return float((self.folder / f"{name}.{what}").read_text())


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def test_without_the_launcher_actors_end_at_once_and_the_buffer_after_the_learner(
    launcher: Launcher,
) -> None:
    launcher.begin(60)
    pids = [launcher.start("buffer"), launcher.start("learner", 1.0)]
    pids.append(launcher.start("actor-0", at_once=True))
    os.kill(pids[-1], signal.SIGSTOP)
    said = launcher.gone()
    assert "; ending buffer, learner, actor-0" in said and "killed" not in said
    assert not any(map(lives, pids))
    assert not (launcher.folder / "actor-0.asked").exists()
    assert launcher.noted("buffer", "asked") >= launcher.noted("learner", "ended")
    assert launcher.keeper.returncode == 0


def test_while_the_launcher_lives_the_keeper_ends_nothing_and_heeds_no_signal(
    launcher: Launcher,
) -> None:
    launcher.begin(60)
    pid = launcher.start("buffer")
    until_it_runs(launcher)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        launcher.keeper.send_signal(signum)
    time.sleep(0.5)
    assert launcher.keeper.poll() is None and lives(pid)
    assert "ending buffer" in launcher.gone() and not lives(pid)


def until_it_runs(launcher: Launcher) -> None:
    """Wait until the keeper ignores signals."""
    status = Path(f"/proc/{launcher.keeper.pid}/status")
    mask = 1 << (signal.SIGHUP - 1) | 1 << (signal.SIGTERM - 1)
    until(lambda: int(status.read_text().partition("SigIgn:")[2].split()[0], 16) & mask == mask)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_at_the_deadline_a_stopped_learner_is_killed_and_the_buffer_still_ends_by_itself(
    launcher: Launcher,
) -> None:
    launcher.begin(0.5)
    buffer, learner = launcher.start("buffer", 0.2), launcher.start("learner", 60.0)
    other = launcher.start("learner-of-another-run", told=False)
    os.kill(learner, signal.SIGSTOP)
    assert "learner has not ended" in launcher.gone()
    assert not lives(learner) and not lives(buffer) and lives(other)
    assert launcher.noted("buffer", "ended") > 0


def test_ranks_that_another_launcher_started_are_awaited_and_killed_at_the_deadline(
    launcher: Launcher,
) -> None:
    launcher.begin(3.0)
    buffer, worker = launcher.start("buffer"), (str(launcher.folder), "rank")
    quick = launcher.start("rank", 0.2, told=False)
    slow = launcher.start("rank", 60.0, told=False)
    elsewhere = launcher.start("rank", told=False, cwd="/")  # of another run, in another folder
    launcher.tell("learner", None, worker=worker)
    assert "learner has not ended" in launcher.gone()
    assert not any(map(lives, (buffer, quick, slow))) and lives(elsewhere)
    assert launcher.noted("buffer", "asked") >= launcher.noted("rank", "ended")


def test_a_process_of_the_same_name_takes_the_place_of_the_one_before(launcher: Launcher) -> None:
    launcher.begin(60)
    first = launcher.start("learner")
    launcher.start("buffer")
    second = launcher.start("learner", 0.3)
    launcher.gone()
    assert lives(first) and not lives(second)
    assert launcher.noted("buffer", "asked") >= launcher.noted("learner", "ended")


def test_what_a_process_started_is_killed_with_it_although_it_has_ended(
    launcher: Launcher,
) -> None:
    launcher.begin(60)
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    gone = subprocess.Popen(
        [sys.executable, "-c", leaves], stdout=subprocess.PIPE, start_new_session=True
    )
    assert gone.stdout is not None
    helper = psutil.Process(int(gone.stdout.readline()))
    launcher.tell("actor-0", gone.pid)
    gone.wait()
    launcher.gone()
    until(lambda: not lives(helper))
    gone.communicate()


def test_a_process_with_the_id_of_an_ended_one_is_not_killed() -> None:
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        kept = KeptProcess("actor-0", other.pid)
        assert kept._leader is not None
        kept._leader._ident = (other.pid, 1.0)  # as the kept one began at another time
        kept.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
    finally:
        other.kill()
        other.wait()


class Counted(KeptProcess):
    """A process that ends so many looks after it was asked."""

    def __init__(self, name: str, looks: float, events: list[str]) -> None:
        super().__init__(name, None)
        self.looks, self.events = looks, events

    @property
    def ended(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def terminate(self) -> None:
        self.events.append(f"ask {self.name}")

    def kill(self) -> None:
        self.events.append(f"kill {self.name}")


def test_the_buffer_is_asked_when_the_others_are_gone_and_has_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_keeper, "LAST_S", 30.0)
    monkeypatch.setattr(run_keeper, "DEADLINE_S", 0.2)
    events = list[str]()
    parts = [Counted("buffer", 5, events), Counted("learner", 1e9, events)]
    parts.append(Counted("actor-0", 0, events))
    assert end_in_order(parts) == ["learner"]
    assert events[:3] == ["ask actor-0", "ask learner", "kill learner"]
    assert events[3:] == ["kill actor-0", "kill learner", "ask buffer", "kill buffer"]


def test_who_is_in_a_hurry_waits_for_nothing() -> None:
    parts = [Counted(name, 1e9, []) for name in ("buffer", "learner")]
    assert end_in_order(parts, hurry=lambda: True) == ["learner", "buffer"]


def test_a_learner_has_as_long_as_it_sends_heartbeats_and_no_other_process_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_keeper, "DEADLINE_S", 0.1)
    heartbeat, began = LastHeartbeat(tmp_path, 1.0), time.monotonic()

    def saving() -> bool:
        if time.monotonic() - began < 3:
            (tmp_path / HEARTBEAT).write_text("micro-batch 3 of 9")
        return False

    slow, actor = Counted("learner", 30, []), Counted("actor-0", 1e9, [])
    assert end_in_order([slow, actor], heartbeat, saving) == ["actor-0"]
    assert slow.looks < 0 < time.monotonic() - began - 1
    assert end_in_order([Counted("learner", 1e9, [])], heartbeat, saving) == ["learner"]
    assert 5 - 0.5 < time.monotonic() - began < 60

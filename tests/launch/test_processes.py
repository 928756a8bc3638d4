"""Children end, with everything they started, whatever they do about signals."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from launch.process_commands import ProcessCommands
from launch.processes import Children
from launch.restarts import Restarts
from launch.supervisor import Run
from learner.watchdog import count_hangs
from r3l.config import load

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(600)"
)
PARENT = (
    "import subprocess, sys, time;"
    f"subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]);"
    "print('up', flush=True); time.sleep(600)"
)


def until(condition, seconds: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def alive(session: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_a_child_that_ignores_sigterm_is_killed_and_named(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start("stubborn", [sys.executable, "-c", STUBBORN])
    until(lambda: child.ready("up"))
    assert children.stop(deadline_s=0.3) == ["stubborn"]
    assert child.exit_code == -9


def test_what_a_child_says_is_heard_through_the_shell_of_another_machine(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start("echo", ["echo", "node-0: up and away\nnode-0: not down"])
    until(lambda: child.ready("up"))
    assert child.ready("not down") and not child.ready("down") and not child.ready("away")


def test_the_workers_behind_launchers_are_asked_to_end_not_the_launchers(tmp_path: Path) -> None:
    worker = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: (print('ended well', flush=True), sys.exit()));"
        "print('up', flush=True); time.sleep(600)"
    )
    launcher = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}, 'do', 'it'])"
    )
    children = Children(tmp_path)
    command = [sys.executable, "-c", launcher, "do", "--quickly", "it"]
    child = children.start("launcher", command, worker=("do", "it"))
    until(lambda: child.ready("up"))
    assert children.stop(deadline_s=20) == []
    assert child.ready("ended well") and child.exit_code == 0


def test_a_child_that_uses_up_the_deadline_leaves_the_first_one_time_to_end(tmp_path: Path) -> None:
    children = Children(tmp_path)
    tidy = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), sys.exit(5)));"
        "print('up', flush=True); time.sleep(600)"
    )
    first = children.start("buffer", [sys.executable, "-c", tidy])
    second = children.start("stubborn", [sys.executable, "-c", STUBBORN])
    until(lambda: first.ready("up") and second.ready("up"))
    assert children.stop(deadline_s=0.1) == ["stubborn"]
    assert first.exit_code == 5


def test_what_a_child_started_does_not_stay_behind(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start("parent", [sys.executable, "-c", PARENT])
    until(lambda: len(child.last_lines(10)) >= 2)
    assert len(alive(child.process.pid)) == 2
    children.stop(deadline_s=5)
    until(lambda: not alive(child.process.pid))


def test_children_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from launch.processes import Children;"
        f"child = Children(Path({str(tmp_path)!r})).start('c', [sys.executable, '-c',"
        " 'import time; time.sleep(600)']); print(child.process.pid, flush=True); time.sleep(600)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait()
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


@pytest.mark.parametrize(("before", "seen"), [("SIG_DFL", "SIGHUP"), ("SIG_IGN", "")])
def test_a_run_whose_terminal_closes_stops_as_for_a_signal_unless_under_nohup(
    tmp_path: Path, before: str, seen: str
) -> None:
    class HungUp(Run):
        def _run(self) -> int:
            os.kill(os.getpid(), signal.SIGHUP)
            return 130

    plan: Any = SimpleNamespace(run=tmp_path, config=load(), actors=0)
    run = HungUp(plan, lambda line: None)
    with handlers_put_back():
        signal.signal(signal.SIGHUP, getattr(signal, before))
        assert run.execute() == 130 and run.interrupted == seen


@contextlib.contextmanager
def handlers_put_back() -> Iterator[None]:
    handlers = {s: signal.getsignal(s) for s in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


class Played(ProcessCommands):
    """A run whose processes are short scripts. Buffer and actor die in their first life; the
    learner is done when all live a second time."""

    def _life(self, name: str) -> list[str]:
        second, folder = f"{name}-again", self.plan.run
        script = (
            "import sys, time; from pathlib import Path; again = Path(sys.argv[1]);"
            f"print('r3l-{name} ready', flush=True); known = again.exists(); again.touch();"
            "time.sleep(600 if known else 1); sys.exit(9)"
        )
        return [sys.executable, "-c", script, str(folder / second)]

    def buffer(self) -> list[str]:
        return self._life("buffer")

    def actor(self, index: int) -> list[str]:
        return self._life("actor")

    def learner(self) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_buffer_and_an_actor_that_die_are_started_again_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "logs").mkdir()
    plan: Any = SimpleNamespace(
        run=tmp_path, config=load(), actors=1, resume=False, learner_device="cpu", learner_ranks=1
    )
    said: list[str] = []
    run = Run(plan, said.append, Played(plan))

    def until_both_live_again() -> None:
        if sum("started again" in line for line in said) == 2:
            run.interrupted = "SIGINT"

    run._show_progress = until_both_live_again  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    for name in ("buffer", "actor-0"):
        line = next(line for line in said if line.startswith(name))
        assert "ended with exit code 9; started again (1 of 3 restarts within an hour" in line
    assert [child.name for child in run.children.members] == ["buffer", "learner", "actor-0"]
    assert said[-1] == f"SIGINT: stopping; resume with --resume --run {tmp_path}"


def test_a_run_in_which_nothing_moves_says_what_the_learner_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting(Played):
        def learner(self) -> list[str]:
            waits = "print('learner waits for actors', flush=True); import time; time.sleep(600)"
            return [sys.executable, "-c", waits]

    monkeypatch.setattr("launch.supervisor.QUIET_S", 0.5)
    (tmp_path / "logs").mkdir()
    (tmp_path / "buffer-again").touch()
    plan: Any = SimpleNamespace(
        run=tmp_path, config=load(), actors=0, resume=False, learner_device="cpu", learner_ranks=1
    )
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "learner waits for actors" in line:
            run.interrupted = "SIGINT"

    run = Run(plan, say, Waiting(plan))
    with handlers_put_back():
        assert run.execute() == 130
    assert all(line.startswith("no step for ") for line in said[:-1])
    assert "; the learner said last: learner waits for actors (" in said[-2]


HANGING = """
import os, signal, sys, time
from pathlib import Path
from learner.watchdog import Watchdog, sign

run, how = Path(sys.argv[5]).parent, sys.argv[6]
with Watchdog(1.0, run):
    print("r3l-learner ready", flush=True)
    sign("step 7")
    time.sleep(0.5)
    if not (run / "learner-again").exists():
        (run / "learner-again").touch()
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)
    while True:
        sign("step 8")
        time.sleep(0.1)
"""


@pytest.mark.parametrize(("how", "ended_by"), [("hangs", "itself"), ("stopped", "launcher")])
def test_a_learner_that_hangs_or_is_stopped_is_ended_counted_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, ended_by: str
) -> None:
    class Hanging(Played):
        def learner(self) -> list[str]:
            worker = ("-m", "learner.cli", "train", "--config", str(tmp_path / "config.yaml"))
            return [sys.executable, "-c", HANGING, *worker, how]

    monkeypatch.setattr("launch.restarts.GRACE_S", 2.0)
    (tmp_path / "logs").mkdir()
    (tmp_path / "buffer-again").touch()
    plan: Any = SimpleNamespace(
        run=tmp_path, config=load(None, ["learner.hang_s=1"]), actors=0, resume=False,
        learner_device="cpu", learner_ranks=1,
    )  # fmt: skip
    said: list[str] = []

    def until_it_lives_again() -> None:
        if run.last_sign.doing == "step 8":
            run.interrupted = "SIGINT"

    run = Run(plan, said.append, Hanging(plan))
    run._show_progress = until_it_lives_again  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    assert said[0].startswith("learner hung: no sign of life for 1 s (learner.hang_s) since it "
                              f"began step 7; ended by {ended_by}, stacks in ")  # fmt: skip
    assert "started again from its last checkpoint (1 of 3 restarts within an hour" in said[1]
    assert len(said) == 3 and count_hangs(tmp_path) == 1
    log = (tmp_path / "logs" / "learner.log").read_text()
    assert 'File "<string>", line 1' in log


def test_a_process_that_dies_too_often_ends_the_run_with_its_name_and_its_last_lines(
    tmp_path: Path,
) -> None:
    (tmp_path / "logs").mkdir()
    plan: Any = SimpleNamespace(
        run=tmp_path, config=load(None, ["actor.restarts=0"]), actors=1, resume=False,
        learner_device="cpu", learner_ranks=1,
    )  # fmt: skip
    (tmp_path / "buffer-again").touch()
    said: list[str] = []
    with handlers_put_back():
        assert Run(plan, said.append, Played(plan)).execute() == 1
    assert "actor-0 ended with exit code 9; its last log lines" in said[-2]
    assert said[-1] == "  r3l-actor ready"


def test_the_last_log_lines_are_kept_for_the_report(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start("failing", [sys.executable, "-c", "print('a'); raise SystemExit(3)"])
    until(lambda: bool(children.dead()))
    assert (child.exit_code, child.last_lines(5)) == (3, ["a"])
    children.stop()


@pytest.mark.parametrize("name", ["progress"])
def test_progress_lines_are_read_once_and_only_when_whole(tmp_path: Path, name: str) -> None:
    from launch.progress import ProgressReader

    path = tmp_path / name
    reader = ProgressReader(path)
    assert reader.new() == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert reader.new() == [{"a": 1}, {"a": 2}]
    with path.open("a") as file:
        file.write(": 3}\n")
    assert reader.new() == [{"a": 3}] and reader.new() == []


def test_a_command_that_is_started_again_is_judged_by_its_own_output(tmp_path: Path) -> None:
    children = Children(tmp_path)
    first = children.start("c", [sys.executable, "-c", "print('ready once')"])
    until(lambda: first.exit_code is not None)
    second = children.start("c", [sys.executable, "-c", "print('again')"])
    until(lambda: second.exit_code is not None)
    assert first.last_lines(5)[0] == "ready once" and children.members == [second]
    assert second.last_lines(5) == ["again"] and not second.ready("ready once")


@pytest.mark.parametrize(
    ("code", "output", "again"),
    [
        (1, "up", [True, True, False]),
        (247, "up", [True, True, False]),
        (0, "up", [True, True, False]),
        (1, "", [False]),
        (2, "up", [False]),
        (3, "up", [False]),
        (4, "", [True] * 5),
    ],
)
def test_a_process_is_started_again_as_often_as_its_limit_and_its_exit_code_allow(
    tmp_path: Path, code: int, output: str, again: list[bool]
) -> None:
    children, restarts = Children(tmp_path), Restarts({"c": 2})
    child = children.start(
        "c", [sys.executable, "-c", f"print({output!r}); raise SystemExit({code})"]
    )
    until(lambda: child.exit_code is not None)
    assert [restarts.allow(child, "up", now=10.0 * i) for i in range(len(again))] == again
    other = children.start("other", [sys.executable, "-c", "print('up')"])
    until(lambda: other.exit_code is not None)
    assert not restarts.allow(other, "up")


def test_a_learner_that_wrote_much_since_it_was_ready_is_started_again(tmp_path: Path) -> None:
    children, restarts = Children(tmp_path), Restarts({"c": 1})
    talk = "print('ready'); print('line\\n' * 300_000); raise SystemExit(1)"
    child = children.start("c", [sys.executable, "-c", talk])
    until(lambda: child.exit_code is not None)
    assert child.last_lines(3)[:2] == ["line", "line"]
    assert restarts.allow(child, "ready")


def test_deaths_long_ago_do_not_count(tmp_path: Path) -> None:
    children, restarts = Children(tmp_path), Restarts({"c": 1})
    child = children.start("c", [sys.executable, "-c", "print('up'); raise SystemExit(1)"])
    until(lambda: child.exit_code is not None)
    assert restarts.allow(child, "up", now=0.0)
    assert not restarts.allow(child, "up", now=10.0)
    assert restarts.allow(child, "up", now=9000.0)

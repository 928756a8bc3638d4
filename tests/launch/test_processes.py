"""Children end, with everything they started, whatever they do about signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from launch.processes import Children
from launch.restarts import Restarts
from launch.run import Run

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

    learner = SimpleNamespace(restarts=0)
    plan: Any = SimpleNamespace(run=tmp_path, config=SimpleNamespace(learner=learner))
    run = HungUp(plan, lambda line: None)
    handlers = {s: signal.getsignal(s) for s in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGHUP, getattr(signal, before))
        assert run.execute() == 130 and run.interrupted == seen
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


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

"""Child processes: they end with everything they started, whatever they do about signals."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from launch.backends.processes import Children
from tests.launch.fakes import until
from tests.processes import lives

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(600)"
)
PARENT = (
    "import subprocess, sys, time;"
    f"subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]);"
    "print('up', flush=True); time.sleep(600)"
)


def alive(session: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and lives(process):
                found.append(process.pid)
        except ProcessLookupError:
            continue
    return found


def test_a_child_that_ignores_sigterm_is_killed_and_named(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start("stubborn", [sys.executable, "-c", STUBBORN])
    until(lambda: child.ready("up"))
    assert children.stop(deadline_s=0.3) == ["stubborn"]
    assert child.exit_code == -9


def test_a_ready_line_is_found_behind_the_machine_name_of_a_remote_shell(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start("echo", ["echo", "node-0: up and away\nnode-0: not down"])
    until(lambda: child.ready("up"))
    assert child.ready("not down") and not child.ready("down") and not child.ready("away")


def test_the_reason_of_an_engines_death_is_told_without_its_last_lines(tmp_path: Path) -> None:
    children = Children(tmp_path)
    lines = "r3l-actor: the engine failed 3 times in a row: NaN; its last lines:\n  WARNING"
    child = children.start("actor-0", ["echo", lines])
    until(lambda: child.exit_code is not None)
    assert child.reason() == "the engine failed 3 times in a row: NaN"


def test_the_worker_behind_a_launcher_gets_the_signal_not_the_launcher(tmp_path: Path) -> None:
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


def test_a_child_that_uses_up_the_deadline_leaves_the_buffer_time_to_end(tmp_path: Path) -> None:
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


def test_grandchildren_do_not_stay_behind(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start("parent", [sys.executable, "-c", PARENT])
    until(lambda: len(child.last_lines(10)) >= 2)
    assert len(alive(child.process.pid)) == 2
    children.stop(deadline_s=5)
    until(lambda: not alive(child.process.pid))


def test_children_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path;"
        "from launch.backends.processes import Children;"
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
    until(lambda: not lives(pid))


def test_the_last_log_lines_are_kept_for_the_report(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start("failing", [sys.executable, "-c", "print('a'); raise SystemExit(3)"])
    until(lambda: bool(children.dead()))
    assert (child.exit_code, child.last_lines(5)) == (3, ["a"])
    children.stop()


def test_a_restarted_command_is_judged_by_its_own_output(tmp_path: Path) -> None:
    children = Children(tmp_path)
    first = children.start("c", [sys.executable, "-c", "print('ready once')"])
    until(lambda: first.exit_code is not None)
    second = children.start("c", [sys.executable, "-c", "print('again')"])
    until(lambda: second.exit_code is not None)
    assert first.last_lines(5)[0] == "ready once" and children.members == [second]
    assert second.last_lines(5) == ["again"] and not second.ready("ready once")

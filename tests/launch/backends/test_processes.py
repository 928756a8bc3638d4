"""Child processes: they end with everything they started, whatever they do about signals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.backends import processes, run_keeper
from launch.backends.processes import Children, Command
from r3l.errors import R3LError
from r3l.run.process.process_list import every_process
from tests.launch.fakes import said, until
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
    for process in every_process():
        try:
            if os.getsid(process.pid) == session and lives(process):
                found.append(process.pid)
        except ProcessLookupError:
            continue
    return found


def test_a_damaged_report_of_a_process_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "processes").mkdir()
    child = Children(tmp_path / "logs").start("c", Command([sys.executable, "-c", "pass"]))
    (tmp_path / "processes" / "c.json").write_text('{"ready": tr')
    assert child.status is None and not child.ready
    assert len(caplog.records) == 1 and "c.json" in caplog.text
    child.process.wait(60)


def test_a_child_that_ignores_sigterm_is_killed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_keeper, "DEADLINE_S", 0.3)
    children = Children(tmp_path)
    child = children.start("stubborn", Command([sys.executable, "-c", STUBBORN]))
    until(lambda: said(child, "up") is not None)
    assert children.stop() == ["stubborn"]
    assert child.exit_code == -9


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
    child = children.start("launcher", Command(command, worker=("do", "it")))
    until(lambda: said(child, "up") is not None)
    assert children.stop() == []
    assert said(child, "ended well") is not None and child.exit_code == 0


def test_a_child_that_uses_up_the_deadline_leaves_the_buffer_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_keeper, "DEADLINE_S", 0.1)
    children = Children(tmp_path)
    tidy = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), sys.exit(5)));"
        "print('up', flush=True); time.sleep(600)"
    )
    first = children.start("buffer", Command([sys.executable, "-c", tidy]))
    second = children.start("stubborn", Command([sys.executable, "-c", STUBBORN]))
    until(lambda: said(first, "up") is not None and said(second, "up") is not None)
    assert children.stop() == ["stubborn"]
    assert first.exit_code == 5


def test_grandchildren_do_not_stay_behind(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start("parent", Command([sys.executable, "-c", PARENT]))
    until(lambda: len(child.last_lines(10)) >= 2)
    assert len(alive(child.process.pid)) == 2
    children.stop()
    until(lambda: not alive(child.process.pid))


LAUNCHER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from launch.backends import processes
children = processes.Children(Path(sys.argv[1]))
{before}
child = children.start("c", processes.Command([sys.executable, "-c", {child!r}]))
print(child.pid, children._keeper.pid, flush=True)
{after}
time.sleep(600)
"""


def launched(folder: Path, child: str = "", before: str = "", after: str = "") -> tuple[int, ...]:
    """The ids of the child and the keeper of a launcher that was killed."""
    child = child or "import time; time.sleep(600)"
    program = LAUNCHER.format(child=child, before=before, after=after)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        line = launcher.stdout.readline()
        if after:
            line = launcher.stdout.readline()
        launcher.kill()
    return tuple(map(int, line.split()))


def test_children_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    pids = launched(tmp_path)
    assert len(pids) == 2
    until(lambda: not any(map(lives, pids)))


def test_grandchildren_end_when_the_launcher_is_killed(tmp_path: Path) -> None:
    child, _ = launched(tmp_path, PARENT)
    until(lambda: not alive(child))


def test_a_child_ends_although_its_launcher_is_killed_while_it_starts_it(tmp_path: Path) -> None:
    before = (
        "processes.Child = lambda name, pid, *_, **__: ("
        "print(pid, children._keeper.pid, flush=True), os.kill(os.getpid(), signal.SIGKILL))"
    )
    pids = launched(tmp_path, before=before)
    assert len(pids) == 2
    until(lambda: not any(map(lives, pids)))


def test_a_killed_keeper_is_replaced_and_knows_the_children_of_the_one_before(
    tmp_path: Path,
) -> None:
    after = (
        "children._keeper.kill(); children._keeper.wait(); children.keep()\n"
        "print(child.pid, children._keeper.pid, flush=True)"
    )
    pids = launched(tmp_path, after=after)
    until(lambda: not any(map(lives, pids)))
    assert "ending c" in (tmp_path / "keeper.log").read_text()


def test_a_keeper_that_ends_while_it_is_told_of_a_process_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = Children(tmp_path)
    child = children.start("a", Command([sys.executable, "-c", "pass"]))

    def broken(*_: object) -> None:
        raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(processes, "tell_keeper", broken)
        with pytest.raises(R3LError, match=r"keeper process ended .*a started"):
            children.tell(child)
    children.stop()


def test_no_child_holds_the_pipe_to_the_keeper_which_ends_with_the_run(tmp_path: Path) -> None:
    children = Children(tmp_path)
    shows = "import os; print('has', *(os.readlink(f'/dev/fd/{fd}') for fd in range(3)));"
    shows += "print('more', sorted(map(int, os.listdir('/dev/fd')))[3:-1])"  # not the listing's own
    first, second = (children.start(n, Command([sys.executable, "-c", shows])) for n in ("a", "b"))
    keeper = children._keeper
    assert keeper is not None and keeper.poll() is None
    for child in (first, second):
        until(lambda child=child: child.ended)
        assert (said(child, "has") or "").split() == [os.devnull, str(child.log), str(child.log)]
        assert said(child, "more") == "[]"
    assert children.stop() == [] and not lives(keeper.pid)


def test_the_last_log_lines_are_kept_for_the_report(tmp_path: Path) -> None:
    children = Children(tmp_path)
    child = children.start(
        "failing", Command([sys.executable, "-c", "print('a'); raise SystemExit(3)"])
    )
    until(lambda: bool(children.dead()))
    assert (child.exit_code, child.last_lines(5)) == (3, ["a"])
    children.stop()


def test_a_restarted_command_is_judged_by_its_own_output(tmp_path: Path) -> None:
    children = Children(tmp_path)
    first = children.start("c", Command([sys.executable, "-c", "print('ready once')"]))
    until(lambda: first.exit_code is not None)
    second = children.start("c", Command([sys.executable, "-c", "print('again')"]))
    until(lambda: second.exit_code is not None)
    assert first.last_lines(5)[0] == "ready once" and children.members == {second.name: second}
    assert second.last_lines(5) == ["again"] and said(second, "ready once") is None


def test_a_child_killed_while_memory_ran_out_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = Children(tmp_path)
    child = children.start("c", Command([sys.executable, "-c", STUBBORN]))
    child.process.kill()
    until(lambda: child.exit_code is not None)
    monkeypatch.setattr(processes, "oom_kills", lambda: child.oom_kills)
    assert child.reason() == ""
    monkeypatch.setattr(processes, "oom_kills", lambda: child.oom_kills + 1)
    assert "memory ran out" in child.reason()
    children.stop()


def test_the_place_of_an_outer_job_does_not_reach_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK",
    )
    for name in outer:
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("TMPDIR", f"/tmp/{'long' * 30}")
    monkeypatch.setenv("RANKING", "kept")
    show = "import os, sys; print('vars', sorted(os.environ), os.environ['TMPDIR'])"
    children = Children(tmp_path)
    child = children.start("child", Command([sys.executable, "-c", show], env={"LOCAL_RANK": "0"}))
    until(lambda: said(child, "vars") is not None)
    told = said(child, "vars") or ""
    children.stop()
    assert [name for name in outer if f"'{name}'" in told] == ["LOCAL_RANK"]  # r3l's own
    assert "'RANKING'" in told and told.endswith(" /tmp")

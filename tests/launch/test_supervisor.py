"""A run: processes that die are started again, signals end it, silence is broken."""

import errno
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from launch import restarts
from launch.backends.processes import Command
from launch.supervisor import Run
from learner.checkpoint import SCHEMA
from r3l.errors import UserError
from r3l.files.whole_file import write_json
from r3l.run.files.progress_lines import AgainLine, StepLine
from r3l.run.files.run_folder import RunFolder
from tests.launch.fakes import Played, handlers_put_back, plan_for, reports
from tests.launch.fakes import said as said_by
from tests.r3l.files.made import evaluation


@pytest.mark.parametrize(("before", "seen"), [("SIG_DFL", "SIGHUP"), ("SIG_IGN", "")])
def test_a_closed_terminal_stops_the_run_unless_it_is_under_nohup(
    tmp_path: Path, before: str, seen: str
) -> None:
    class HungUp(Run):
        def _run(self) -> int:
            os.kill(os.getpid(), signal.SIGHUP)
            return 130

    plan = plan_for(tmp_path)
    run = HungUp(plan, lambda line: None)
    with handlers_put_back():
        signal.signal(signal.SIGHUP, getattr(signal, before))
        assert run.execute() == 130 and run.interrupted == seen


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_ctrl_c_and_sigterm_stop_the_run_and_every_process(tmp_path: Path, name: str) -> None:
    (tmp_path / "buffer-again").touch()
    plan = plan_for(tmp_path)
    run = Run(plan, lambda line: None, Played(plan))

    def until_both_run() -> None:
        if len(run.children.members) == 2:
            os.kill(os.getpid(), getattr(signal, name))

    run._show_progress = until_both_run  # type: ignore[method-assign]
    with handlers_put_back():
        own = lambda *_: pytest.fail("no handler caught the signal")  # noqa: E731
        signal.signal(getattr(signal, name), own)
        assert run.execute() == 130 and run.interrupted == name
        assert signal.getsignal(getattr(signal, name)) is own
    assert all(child.exit_code is not None for child in run.children.members.values())


def test_ctrl_c_before_the_buffer_is_ready_says_how_to_go_on(tmp_path: Path) -> None:
    class Slow(Played):
        def buffer(self) -> Command:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            return Command([sys.executable, "-c", "import time; time.sleep(600)"])

    plan, said = plan_for(tmp_path), list[str]()
    run = Run(plan, said.append, Slow(plan))
    with handlers_put_back():
        assert run.execute() == 130
    (line,) = [line for line in said if line.startswith("SIGINT")]
    assert line.endswith(f" r3l-launch --resume --run {plan.run}")


class Deaf(Played):
    """A run whose learner ignores SIGTERM."""

    def learner(self) -> Command:
        script = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "print('deaf', flush=True); time.sleep(600)"
        )
        return Command([sys.executable, "-c", script])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_kills_what_does_not_end(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "buffer-again").touch()
    monkeypatch.setattr("launch.supervisor.STOPPING_S", 0.1)
    plan, said = plan_for(tmp_path), list[str]()

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("waiting for the learner"):
            os.kill(os.getpid(), signal.SIGINT)

    run = Run(plan, say, Deaf(plan))

    def until_the_learner_is_deaf() -> None:
        if said_by(run.children.members["learner"], "deaf") is not None and not run.interrupted:
            os.kill(os.getpid(), first)

    run._show_progress = until_the_learner_is_deaf  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    killed, _, names = said[-1].partition(": ")
    assert killed.startswith("killed") and "learner" in names.split(", ")
    (waits,) = [line for line in said if line.startswith("waiting for the learner")]
    assert "save step 0 " in waits and "begun to start" in waits
    assert all(child.exit_code is not None for child in run.children.members.values())


def test_a_stopped_run_says_which_steps_will_be_made_again(tmp_path: Path) -> None:
    class Stopped(Run):
        def _run(self) -> int:
            self.folder.add_progress(StepLine(6, {}))
            return 130

    plan, said = plan_for(tmp_path), list[str]()
    saved = tmp_path / "checkpoints" / "step-000004"
    saved.mkdir(parents=True)
    state = {"schema": SCHEMA, "version": 4, "model_digest": "", "files": {}}
    write_json(saved / "state.json", state)
    with handlers_put_back():
        assert Stopped(plan, said.append).execute() == 130
    assert said[-1].startswith("last checkpoint: step 4; 2 steps ")


@pytest.mark.parametrize(
    "failure", [OSError(errno.EIO, "Input/output error"), UserError("standard output: full")]
)
def test_a_terminal_that_is_gone_does_not_end_the_run(tmp_path: Path, failure: Exception) -> None:
    def gone(line: str) -> None:
        raise failure

    def lose_the_terminal() -> None:
        run.say("a line")
        if not run.interrupted:
            os.kill(os.getpid(), signal.SIGHUP)

    (tmp_path / "buffer-again").touch()
    plan = plan_for(tmp_path)
    run = Run(plan, gone, Played(plan))
    run._show_progress = lose_the_terminal  # type: ignore[method-assign]
    with handlers_put_back():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as without nohup
        assert run.execute() == 130
    assert all(child.exit_code is not None for child in run.children.members.values())


def test_a_process_that_dies_twice_is_started_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "BACK_OFF_S", 1e9)
    plan = plan_for(tmp_path, actors=1)
    (tmp_path / "buffer-again").touch()
    said: list[str] = []

    class DiesAlways(Played):
        def actor(self, index: int) -> Command:
            ready = reports(tmp_path, "actor-0")
            return Command([sys.executable, "-c", f"{ready}; raise SystemExit(9)"])

    run = Run(plan, said.append, DiesAlways(plan))

    def until_it_waits() -> None:
        if run.due and len(run.restarts.deaths["actor-0"]) == 2:
            ended = [*run.children.members.values()][-1].process.pid
            run._start_if_due("actor-0")
            assert [*run.children.members.values()][-1].process.pid == ended  # not yet
            run.due["actor-0"] = 0.0
        if len(run.restarts.deaths["actor-0"]) == 3:
            run.interrupted = "SIGINT"

    run._show_progress = until_it_waits  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    first, second, third = (line for line in said if line.startswith("actor-0 ended"))
    assert "; restarted (1 of 3 " in first
    assert "; restarted in 60 s (2 of 3 " in second and "; restarted in 60 s (3 of 3 " in third


def test_a_buffer_and_an_actor_that_die_are_started_again_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    plan = plan_for(tmp_path, actors=1)
    said: list[str] = []
    run = Run(plan, said.append, Played(plan))

    def until_both_live_again() -> None:
        if sum("restarted" in line for line in said) == 2:
            run.interrupted = "SIGINT"

    run._show_progress = until_both_live_again  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    for name in ("buffer", "actor-0"):
        line = next(line for line in said if line.startswith(name))
        assert "exit code 9; restarted (1 of 3 " in line
    assert [*run.children.members] == ["buffer", "learner", "actor-0"]
    assert said[-1].startswith("SIGINT: ")
    assert said[-1].endswith(f" r3l-launch --resume --run {tmp_path}")


def test_the_learner_does_not_wait_for_the_buffer_and_actors_do(tmp_path: Path) -> None:
    class Listening(Played):
        def buffer(self) -> Command:
            return self._reports("buffer", "time.sleep(0.3)")

        def learner(self) -> Command:
            assert not (tmp_path / "processes").exists()
            return self._reports("learner", f"asked = {self.buffer_endpoint!r}")

        def actor(self, index: int) -> Command:
            assert (tmp_path / "processes" / "buffer.json").exists()
            known.add((self.buffer_endpoint, self.weights_endpoint))
            return self._reports(f"actor-{index}", "pass")

        def _reports(self, process: str, first: str) -> Command:
            script = f"import time; {first}; {reports(tmp_path, process)}; time.sleep(600)"
            return Command([sys.executable, "-c", script])

    plan = plan_for(tmp_path, actors=2)
    run, known = Run(plan, lambda line: None, Listening(plan)), set[tuple[str, str]]()

    def until_all_have_started() -> None:
        if len(run.children.members) == 4:
            run.interrupted = "SIGINT"

    run._show_progress = until_all_have_started  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    names = [*run.children.members]
    assert names == ["buffer", "learner", "actor-0", "actor-1"]
    [(buffer, weights)] = known
    assert buffer != weights and not buffer.endswith("*") and not weights.endswith("*")


def test_a_run_without_progress_says_what_the_learner_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting(Played):
        def learner(self) -> Command:
            RunFolder(tmp_path).write_heartbeat("waiting for groups")
            return Command([sys.executable, "-c", "import time; time.sleep(600)"])

    monkeypatch.setattr("launch.supervisor.QUIET_S", 0.5)
    (tmp_path / "buffer-again").touch()
    plan = plan_for(tmp_path)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "waiting for groups" in line:
            run.interrupted = "SIGINT"

    run = Run(plan, say, Waiting(plan))
    with handlers_put_back():
        assert run.execute() == 130
    assert all(line.startswith("no step for ") for line in said[:-1])
    assert "heartbeat: waiting for groups (" in said[-2]


HANGING = """
import os, signal, sys, time
from pathlib import Path
from learner.watchdog import Watchdog, heartbeat
from r3l.run.files.run_folder import ProcessStatus, RunFolder

run, how = Path(sys.argv[5]).parent, sys.argv[6]
with Watchdog(2.0, run):
    RunFolder(run).report("learner", ProcessStatus("ready"))
    heartbeat("step 7")
    time.sleep(0.5)
    if not (run / "learner-again").exists():
        (run / "learner-again").touch()
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)
    while True:
        heartbeat("step 8")
        time.sleep(0.1)
"""


@pytest.mark.parametrize(("how", "ended_by"), [("hangs", "itself"), ("stopped", "launcher")])
def test_a_learner_that_hangs_or_is_stopped_is_ended_counted_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, ended_by: str
) -> None:
    class Hanging(Played):
        def learner(self) -> Command:
            worker = ("-m", "learner.cli", "train", "--config", str(tmp_path / "config.yaml"))
            return Command([sys.executable, "-c", HANGING, *worker, how], worker=worker)

    (tmp_path / "buffer-again").touch()
    plan = plan_for(tmp_path, "learner.hang_s=3")
    said: list[str] = []

    def until_it_lives_again() -> None:
        if run.children.heartbeat.doing == "step 8":
            run.interrupted = "SIGINT"

    run = Run(plan, said.append, Hanging(plan))
    run._show_progress = until_it_lives_again  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    # After 10 s it says of the buffer, which here is a script, that it does not reply.
    hung, again, stopping = [line for line in said if not line.startswith("buffer")]
    assert hung.startswith("learner hung: ") and "3 s (learner.hang_s)" in hung
    assert "began step 7; " in hung and f"ended by {ended_by}, " in hung
    assert "restarted from its last checkpoint (1 of 3 " in again
    assert stopping.startswith("SIGINT: ") and len(RunFolder(tmp_path).hangs()) == 1
    log = (tmp_path / "logs" / "learner.log").read_text()
    assert 'File "<string>", line 1' in log


def test_a_process_that_dies_too_often_ends_the_run_with_its_name_and_its_last_lines(
    tmp_path: Path,
) -> None:
    plan = plan_for(tmp_path, "actor.restarts=0", actors=1)
    (tmp_path / "buffer-again").touch()
    said: list[str] = []
    with handlers_put_back():
        assert Run(plan, said.append, Played(plan)).execute() == 1
    assert "actor-0 ended with exit code 9; " in said[-2]
    assert said[-1] == "  is up"


def test_the_summary_goes_from_the_runs_first_evaluation_to_its_last(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_progress(evaluation(0, 0.1))
    folder.add_progress(StepLine(3))
    run = Run(plan_for(tmp_path, resume=True), lambda line: None)
    once = "eval success 0.10 at step 0, not evaluated since (8 tasks, 3 steps, "
    assert run._summary().startswith(once)
    run.evaluations.append(evaluation(3, 0.9))
    assert run._summary().startswith("eval success 0.10 -> 0.90 (8 tasks, 3 steps, ")


def test_the_summary_says_if_the_change_is_not_clear(tmp_path: Path) -> None:
    run = Run(plan_for(tmp_path), lambda line: None)
    for step, low, success, high in ((0, 0.25, 0.40, 0.58), (3, 0.36, 0.53, 0.70)):
        run.evaluations.append(evaluation(step, success, success_low=low, success_high=high))
    assert "not a clear change (95 % interval -0.12 to +0.36)" in run._summary()
    run.evaluations.append(evaluation(6, 0.9, success_low=0.8, success_high=0.95))
    assert "not a clear" not in run._summary()
    run.evaluations[:] = [evaluation(3, 0.4, success_low=0.2, success_high=0.6)] * 2
    once = run._summary()
    assert once.startswith("eval success 0.40 at step 3 (") and "clear" not in once


def test_a_worse_evaluation_is_said_also_to_a_run_that_goes_on(tmp_path: Path) -> None:
    said, folder = list[str](), RunFolder(tmp_path)
    around = [{"success_low": s - 0.05, "success_high": s + 0.05} for s in (0.5, 0.1)]
    folder.add_progress(evaluation(0, 0.5, **around[0]))
    run = Run(plan_for(tmp_path, resume=True), said.append)
    folder.add_progress(evaluation(3, 0.1, **around[1]))
    run._show_progress()
    assert said[1].startswith(
        "learns little or nothing: the evaluated success fell from 0.50 at step 0 to 0.10 at step 3"
    )


def test_a_disk_that_is_nearly_full_is_said_once_and_that_it_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    run, lacks = Run(plan_for(tmp_path), said.append), iter(["", "2 MiB", "1 MiB", "", ""])
    monkeypatch.setattr("launch.supervisor.lacking_space", lambda folder: next(lacks))
    monkeypatch.setattr("launch.supervisor.ROOM_S", -1.0)
    for _ in range(5):
        run._report_room()
    lacking, again = said
    assert lacking == "2 MiB" and again.endswith("room again")


def test_a_process_that_lost_a_page_of_a_full_disk_is_reported_so(tmp_path: Path) -> None:
    code, said = ends(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGBUS)")
    assert code == 1 and "exit code -7: SIGBUS: " in said[0]


NOISE = r"""
nanobind: leaked 2 instances!
 - leaked instance 0x7f of type "xgrammar.xgrammar_bindings.CompiledGrammar"
nanobind: leaked 5 functions!
 - leaked function "_serialize_json"
 - ... skipped remainder
See https://nanobind.readthedocs.io/en/latest/refleaks.html
[rank0]:[W1122] Warning: destroy_process_group() was not called before program exit
"""


def ends(run: Path, script: str) -> tuple[int, list[str]]:
    """The exit code of a run whose learner is a script, and what the console shows."""

    class Ending(Played):
        def learner(self) -> Command:
            return Command([sys.executable, "-c", script])

    (run / "buffer-again").touch()
    plan, said = plan_for(run, "learner.restarts=0"), list[str]()
    with handlers_put_back():
        return Run(plan, said.append, Ending(plan)).execute(), said


def test_a_learner_that_stops_itself_is_reported_with_its_own_last_line_and_nothing_else(
    tmp_path: Path,
) -> None:
    said_by_learner = (
        "r3l-notice: step 2 skipped: loss nan\nr3l-learner: step 3 made weights that are NaN\n"
    )
    code, said = ends(tmp_path, f"import sys; print({said_by_learner + NOISE!r}); sys.exit(3)")
    assert code == 3
    skipped, ended = said
    assert skipped == "learner: step 2 skipped: loss nan"
    assert "exit code 3: step 3 made weights that are NaN (" in ended
    assert ended.endswith(f"{tmp_path / 'logs' / 'learner.log'})")


def test_an_exception_that_ends_a_learner_is_said_before_its_last_lines_without_library_noise(
    tmp_path: Path,
) -> None:
    script = f"import atexit; atexit.register(print, {NOISE!r}); print('loads'); 1 / 0"
    code, said = ends(tmp_path, script)
    assert code == 1
    first, *lines = said
    assert "exit code 1: ZeroDivisionError: division by zero; " in first
    assert lines[-1] == "  ZeroDivisionError: division by zero" and "  loads" in lines
    assert not any(
        "nanobind" in line or "leaked" in line or "destroy_process_group" in line for line in lines
    )


def test_an_alarm_about_agents_is_said_once(tmp_path: Path) -> None:
    said = list[str]()
    run = Run(plan_for(tmp_path, "learner.steps=9"), said.append, quiet=True)
    for step in (1, 2):
        line = StepLine(step, {"agent/second_models": 1.0, "agent/asked_gpt": 2.0})
        RunFolder(tmp_path).add_progress(line)
        run._show_progress()
    (alarm,) = said
    assert alarm.startswith("agents: ") and "gpt (2 calls)" in alarm


def test_while_processes_are_watched_the_progress_is_not_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    run = Run(plan_for(tmp_path, "learner.steps=9"), said.append)
    monkeypatch.delattr(RunFolder, "history")
    for line in (StepLine(1), StepLine(2), AgainLine(1, 2), StepLine(2)):
        RunFolder(tmp_path).add_progress(line)
        run._show_progress()
    assert [line.split()[:2] for line in said if line.startswith("step ")] == [
        ["step", "1/9"], ["step", "2/9"], ["step", "2/9"],
    ]  # fmt: skip
    assert run.learning._evidence.steps[-1].step == 2 == len(run.learning._evidence.steps)


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_leaves_out_steps_evaluations_and_what_starts(tmp_path: Path, quiet: bool) -> None:
    said = list[str]()
    run = Run(plan_for(tmp_path, "learner.steps=9"), said.append, quiet=quiet)
    for line in (StepLine(1), evaluation(1), AgainLine(1, 2)):
        RunFolder(tmp_path).add_progress(line)
    run._show_progress()
    continued = said.pop()
    assert "from step 1 " in continued and "reached 2)" in continued
    run.startup._last -= 60
    run._report_start()
    if quiet:
        assert said == []
    else:
        step, evaluated, starts = said
        assert step.startswith("step 1/9 ") and evaluated.startswith("eval at step 1: ")
        assert "buffer opens its store" in starts

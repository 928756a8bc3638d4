"""Unresponsive parts of a run are reported and started again: real buffer services."""

import math
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buffer import BufferStats
from launch import console, unresponsive
from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Child, Command
from launch.supervisor import Run
from launch.unresponsive import Unresponsive
from r3l.run.config import dump, load
from tests.launch.fakes import Played, handlers_put_back, plan_for

pytestmark = pytest.mark.system

HEARTBEATS = """
import os, sys, time
from pathlib import Path
from buffer import BufferClient
from r3l.run.files.run_folder import ProcessStatus, RunFolder
with BufferClient(sys.argv[1], timeout_s=60) as client:
    name = f"actor-0.{os.getpid()}"
    RunFolder(Path(sys.argv[2])).report("actor-0", ProcessStatus("ready", name=name))
    while True:
        client.renew([], name)
        time.sleep(0.2)
"""


class Real(Played):
    """A run with a real buffer, an actor that sends heartbeats and a learner that does nothing."""

    def buffer(self) -> Command:
        return ProcessCommands.buffer(self)

    def actor(self, index: int) -> Command:
        words = [sys.executable, "-c", HEARTBEATS, self.buffer_endpoint, str(self.plan.run)]
        return Command(words, at_once=True)


def played(folder: Path, *settings: str) -> tuple[Run, list[str]]:
    """A run of such processes, and the lines it says."""
    plan = plan_for(folder, "buffer.map_gib=0.25", *settings, actors=1)
    (folder / "config.yaml").write_text(dump(plan.config))
    said: list[str] = []
    return Run(plan, said.append, Real(plan)), said


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASK_S", "BUFFER_SILENT_S", "ACTOR_SILENT_S"):
        monkeypatch.setattr(unresponsive, name, 0.5)
    monkeypatch.setattr(console, "START_LINES_S", 3600.0)  # a slow start is not meant


def test_a_stopped_buffer_is_named_and_started_again_and_no_other_part_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unresponsive, "BUFFER_SILENT_S", 3.0)  # a reply may be on its way
    run, said = played(tmp_path, "buffer.reply_s=12")
    stopped = list[int]()

    def stop_the_buffer() -> None:
        if not stopped and run._actors() and not run.unresponsive.buffer_s:
            said.clear()  # a slow machine's buffer was silent before
            stopped.append(run.children.members["buffer"].process.pid)
            os.kill(stopped[0], signal.SIGSTOP)
        if any("replies again" in line for line in said):
            run.interrupted = "SIGINT"

    run._show_progress = stop_the_buffer  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    assert (
        said[0].startswith("buffer has not replied for ")
        and "after 12 s (buffer.reply_s" in said[0]
    )
    assert said[1].startswith("buffer is killed: ") and "12 s (buffer.reply_s)" in said[1]
    assert said[2].startswith("buffer ended ") and "code -9; restarted (1 of 3 " in said[2]
    assert said[3].startswith("buffer replies again after ") and len(said) == 5
    assert list(run.restarts.deaths) == ["buffer"]


def test_a_stopped_actor_is_named_within_its_lease_and_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        unresponsive, "BUFFER_SILENT_S", 300.0
    )  # a slow machine's buffer is not meant
    run, said = played(tmp_path, "buffer.lease_s=6")

    def stop_the_actor() -> None:
        actor = run.children.members.get("actor-0")
        if actor is not None and run._actors() and not run.interrupted:
            os.kill(actor.process.pid, signal.SIGCONT if said else signal.SIGSTOP)
        if len(said) >= 2:
            run.interrupted = "SIGINT"

    run._show_progress = stop_the_actor  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    assert said[0].startswith("actor-0 has sent nothing for ") and "after 6 s (buffer." in said[0]
    assert said[1] == "actor-0 sends again" and run.restarts.deaths == {}


def test_only_a_stopped_actor_is_named_long_before_its_lease_is_over() -> None:
    said = list[str]()
    parts = Unresponsive(load(None, ["buffer.lease_s=120"]).buffer, said.append)
    running, stopped = (SimpleNamespace(name=f"actor-{n}", stopped=n == 1) for n in range(2))
    actors: Any = {"a": running, "b": stopped}
    parts._known = dict.fromkeys(actors, time.monotonic() - 500)

    def stats(*seen_s: float) -> BufferStats:
        each = zip(actors, seen_s, strict=True)
        return BufferStats(actors={name: {"seen_s": seconds} for name, seconds in each})

    parts._report_actors(actors, stats(11.0, 11.0), time.monotonic())
    [line] = said
    assert line.startswith("actor-1 has sent nothing for 11 s;") and "after 120 s" in line
    parts._report_actors(actors, stats(61.0, 1.0), time.monotonic())
    assert said[1].startswith("actor-0 has sent nothing for 61 s")
    assert said[2] == "actor-1 sends again"


def test_an_actor_that_stays_stopped_is_replaced_when_its_lease_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unresponsive, "BUFFER_SILENT_S", 300.0)
    run, said = played(tmp_path, "buffer.lease_s=4")
    stopped = list[Child]()

    def stop_the_actor() -> None:
        if not stopped and run._actors():
            stopped.extend(c for c in run.children.members.values() if c.name == "actor-0")
            os.kill(stopped[0].process.pid, signal.SIGSTOP)
        if any("; restarted (" in line for line in said) and run._actors():
            run.interrupted = "SIGINT"  # another one is ready

    run._show_progress = stop_the_actor  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    text = "\n".join(said)
    assert re.search(r"actor-0 has sent nothing for \d+ s; .* 4 s", text)
    assert re.search(r"actor-0 ended .* code -9: stopped, .*; restarted \(1 of 3 ", text)
    assert len(run.restarts.deaths["actor-0"]) == 1
    assert stopped[0].exit_code == -9


def test_an_actor_that_hangs_is_replaced_when_no_engine_takes_so_long_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unresponsive, "BUFFER_SILENT_S", 300.0)
    run, said = played(tmp_path, "buffer.lease_s=2", "actor.engine_timeout_s=1")
    hangs = HEARTBEATS.replace("while True:", "for _ in range(3):") + "    time.sleep(600)"

    def actor(index: int) -> Command:
        return Command([sys.executable, "-c", hangs, run.commands.buffer_endpoint, str(tmp_path)])

    monkeypatch.setattr(run.commands, "actor", actor)

    def until_it_is_replaced() -> None:
        if any("; restarted (" in line for line in said):
            run.interrupted = "SIGINT"

    run._show_progress = until_it_is_replaced  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    said_of_it = r"actor-0 ended with exit code -9: hung, and silent for \d+ s, so it was killed"
    assert any(re.match(said_of_it, line) for line in said)


def test_a_stopped_actor_ends_by_itself_when_the_run_does(tmp_path: Path) -> None:
    run, said = played(tmp_path)

    def stop_the_actor() -> None:
        if run._actors() and not run.interrupted:
            os.kill([*run.children.members.values()][-1].process.pid, signal.SIGSTOP)
            run.interrupted = "SIGTERM"

    run._show_progress = stop_the_actor  # type: ignore[method-assign]
    with handlers_put_back():
        assert run.execute() == 130
    assert not any("killed after the deadline" in line for line in said)


def test_an_actor_that_stays_versions_behind_while_others_follow_is_named_once() -> None:
    said = list[str]()
    watch = Unresponsive(load(None, ["buffer.max_staleness=2"]).buffer, said.append)
    actors: Any = {f"actor-{n}.x": SimpleNamespace(name=f"actor-{n}") for n in range(3)}

    def stats(*behind: int) -> BufferStats:
        known = {f"actor-{n}.x": {"weight_version": 50.0 - by} for n, by in enumerate(behind)}
        return BufferStats(learner_version=50, actors=known)

    for now in (0.0, 100.0):
        watch._report_behind(actors, stats(40, 40, 40), now)  # all of them: the learner is fast
    for now in (101.0, 150.0):
        watch._report_behind(actors, stats(1, 45, 3), now)
    assert said == []
    odd = BufferStats(learner_version=50, actors={"actor-1.x": {"weight_version": math.nan}})
    Unresponsive(load(None).buffer, said.append)._report_behind(actors, odd, 0.0)
    for now in (162.0, 300.0):
        watch._report_behind(actors, stats(1, 45, 3), now)
    (line,) = said
    assert line.startswith("actor-1 is 45 versions behind ")

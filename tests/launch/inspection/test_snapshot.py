"""A run at one moment, with a real buffer service."""

import os
import signal
import subprocess
import sys

import pytest

from buffer import BufferClient
from launch.inspection import snapshot
from launch.inspection.doctor import findings
from launch.inspection.snapshot import forecast, last_errors, processes_of, take
from launch.inspection.status import lines
from r3l.errors import BufferUnavailable
from r3l.records import GroupPlan, Task
from r3l.run import config as configuration
from r3l.run.bill import Usage
from r3l.run.config import RunConfig
from r3l.run.files.progress_lines import StepLine
from r3l.run.files.run_folder import ProcessStatus, RunFolder
from tests.buffer.fakes import Served, until
from tests.launch.inspection.conftest import step
from tests.launch.inspection.snapshots import process

ASLEEP = "import time; time.sleep(600)"


@pytest.fixture
def live(tmp_path):
    """A run with a real buffer service, and an actor that only sleeps."""
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    config = run / "config.yaml"
    config.write_text(configuration.dump(RunConfig(buffer={"lease_s": 30.0})))
    served = Served(run / "buffer", "tcp://127.0.0.1:0", "--config", config, anew=True)
    RunFolder(run).report("actor-0", ProcessStatus("ready", name="actor-0.ab"))
    arguments = ["actors.cli", "--config", "config.yaml", "--name", "actor-0"]
    actor = subprocess.Popen([sys.executable, "-c", ASLEEP, *arguments], cwd=run)
    until(lambda: len(processes_of(run)) == 2)
    yield run, served, actor
    for one in (served.process, actor):
        one.send_signal(signal.SIGCONT)
        one.kill()
        one.wait()


def test_processes_groups_and_actors_of_a_run_that_goes_on(live):
    run, served, actor = live
    with BufferClient(served.endpoint, name="test") as client:
        client.add_tasks([Task("door/1", "doors", 1)])
        client.lease("actor-0.ab", 0, GroupPlan(2), {"weight_version": 0.0})
        now = take(RunFolder(run))
    assert [(one.name, one.pid) for one in now.processes] == [
        ("buffer", served.process.pid), ("actor-0", actor.pid),
    ]  # fmt: skip
    assert now.launcher == os.getpid() and now.buffer.reply_s < snapshot.REPLY_S
    assert now.buffer.endpoint == served.endpoint and now.buffer.stats.train["leased"] == 1
    assert now.actors[0].process == "actor-0"


def test_a_damaged_bill_is_a_finding(tmp_path):
    run = RunFolder(tmp_path)
    run.write_settings(RunConfig(budget={"tokens": 9}))
    run.write_bill({"learner": Usage(sampled=5)})
    assert take(run).budget == {"budget.tokens": (5, 9)}
    (tmp_path / "bill.json").write_text('{"learner": {"sampled": "x"}}')
    now = take(run)
    assert now.budget == {} and "bill.json: damaged" in now.damaged_bill
    found = [f"{one.what}; {one.remedy}" for one in findings(now)]
    assert any("the bill cannot be read: " in line and "delete it" in line for line in found)
    assert any("the bill cannot be read: " in line for line in lines(now))


def test_a_stopped_service_is_seen_and_named(live, monkeypatch):
    run, served, _ = live
    monkeypatch.setattr(snapshot, "REPLY_S", 1.0)
    served.process.send_signal(signal.SIGSTOP)
    until(lambda: processes_of(run)[0].state == "stopped")
    now = take(RunFolder(run))
    assert (now.buffer.reply_s, now.buffer.error) == (None, "no reply for 1 s")
    said = [one.what for one in findings(now)]
    assert f"buffer (process {served.process.pid}) is stopped" in said
    assert any(what.endswith(" not answer: no reply for 1 s") for what in said)


class Full:
    """A client for which the service has no place."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        raise BufferUnavailable("no reply to stats", refused="it has no place for another client")

    def __exit__(self, *_):
        pass


def test_a_service_without_a_place_for_this_command_says_so(monkeypatch):
    monkeypatch.setattr(snapshot, "BufferClient", Full)
    found = snapshot.Buffer()
    snapshot.ask(found, ProcessStatus("ready", "tcp://127.0.0.1:1"), "")
    assert (found.reply_s, found.error) == (None, "it has no place for another client")


def test_the_heartbeat_of_an_earlier_learner_says_nothing(ended, monkeypatch):
    beat = ended / ".last-heartbeat"
    beat.write_text("step 7")
    os.utime(beat, (900.0, 900.0))
    for since, doing in ((800.0, "step 7"), (1000.0, "")):
        learner = process("learner", 12)
        learner.since = since
        monkeypatch.setattr(snapshot, "processes_of", lambda run, one=learner: [one])
        now = take(RunFolder(ended))
        assert now.learner_doing == doing and (now.heartbeat_ago_s is None) == (not doing)
    assert "starts" in "\n".join(lines(now))


def test_the_next_step_is_forecast_from_the_median_of_the_last_ones():
    steps = [step(n) for n in range(1, 5)] + [StepLine(5, time=2000.0)]  # after a pause
    found = forecast(steps, 9, now=2004.0)
    assert (found.last_ago_s, found.step_s, found.next_s, found.end_s) == (4.0, 10.0, 6.0, 36.0)
    late = forecast(steps, 9, now=2015.0)
    assert (late.next_s, late.end_s) == (-5.0, 30.0)
    assert forecast(steps, 5, now=2001.0).next_s is None
    assert forecast(steps[:1], 9, now=2001.0).step_s is None
    assert forecast([], 9, now=1.0).step == 0


def test_idle_shares_are_means_of_the_last_ten_steps():
    steps = [
        StepLine(n, {"learner/idle_share": float(n > 3) * n / 10}, float(n)) for n in range(1, 14)
    ]
    waits = [StepLine(n, {"actor/session_wait_s": 5.0 * n}, float(n)) for n in range(1, 14)]
    assert forecast(waits, 20, now=14.0).session_waits == pytest.approx(5.0)
    found = forecast(steps, 20, now=14.0)
    assert found.learner_idle == pytest.approx(sum(range(4, 14)) / 100)
    assert found.actor_idle is None


def test_only_lines_that_report_an_error_are_shown(tmp_path):
    (tmp_path / "buffer.log").write_text("r3l-buffer ready tcp://127.0.0.1:1\n")
    lines = ["INFO no error", "Traceback", "r3l.errors.RankLost: rank 1 is silent", "WARNING w",
             "12:00 learner ERROR disk", "r3l-learner hangs: rank 0", "ERROR again"]  # fmt: skip
    (tmp_path / "learner.log").write_text("\n".join(lines))
    assert last_errors(tmp_path) == {"learner": [lines[4], lines[5], lines[6]]}
    assert last_errors(tmp_path / "nothing") == {}

"""What is wrong with a run."""

import re

import pytest
from click.testing import CliRunner

from buffer.client.exchange import REFUSALS
from buffer.wire.sockets import NO_PLACE
from launch.cli import main
from launch.inspection.agent_training import Alarm
from launch.inspection.doctor import findings
from launch.inspection.learning import Reason
from launch.inspection.snapshot import ActorState, Forecast
from tests.launch.inspection.snapshots import GIB, buffer, healthy, process


def problems(**changes):
    return [one for one in findings(healthy(**changes)) if one.problem]


def test_nothing_is_wrong_with_a_healthy_run():
    assert findings(healthy()) == []


ALL = [process("buffer", 11), process("learner", 12), process("actor-0", 13)]


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"processes": []}, "; the run ended at step 12", "--resume --run first"),
        ({"launcher": None}, "launcher has ended", "kill 11 12 13 14"),
        ({"processes": [*ALL, process("actor-1", 14, "stopped")]},
         "actor-1 (process 14) is stopped", "kill -CONT 14"),
        ({"processes": [*ALL, process("actor-1", 14, "zombie")]}, "is dead", ""),
        ({"processes": ALL[:1]}, "learner is not running", "logs/learner.log"),
        ({"buffer": buffer(reply_s=None, error="no reply for 5 s")},
         " not answer: no reply for 5 s", "its disk may be slow"),
        ({"buffer": buffer(reply_s=None, error=REFUSALS[NO_PLACE])},
         " not answer: it has no place for another client", "end one that is not needed"),
        ({"actors": [ActorState("actor-0.ab", "actor-0", 70.0, 12, 1, 0.0)]},
         "actor-0 has sent nothing for 1.2 min", "after 120 s (buffer.lease_s)"),
        ({"heartbeat_ago_s": 500.0}, "no heartbeat for 8.3 min: micro-batch 3", "learner.hang_s"),
        ({"buffer": buffer(free_bytes=GIB)}, "disk has 1.00 GiB left", "buffer.retention"),
        ({"buffer": buffer(map_free_bytes=GIB // 8)}, "grow by only 0.12 GiB", "buffer.map_gib"),
        ({"buffer": buffer(fingerprint_conflicts=2)}, "with different weights: 2", "another run"),
        ({"buffer": buffer(drops={"stale": 30}, train={"trained": 100})},
         "30 groups expired: stale", "fewer actors"),
        ({"buffer": buffer(algorithm_failed={"plan": 3})},
         "the algorithm's plan failed 3 times", "logs/buffer.log"),
        ({"buffer": buffer(slot_drops={"base/environment_lost": 200})},
         "200 base attempts failed: environment_lost", "logs"),
        ({"buffer": buffer(slot_drops={"distilled/record_RecordError": 1})},
         "1 distilled attempts failed: record_RecordError", "report it"),
        ({"progress": Forecast(12, 60, 90.0, 10.0, -80.0, 470.0)}, "overdue by 1.3 min", ""),
        ({"actors": [ActorState("actor-0.ab", "actor-0", 0.1, 8, 1, 0.0)]},
         "actor-0 has weights v8, ", "logs/actor-0.log"),
        ({"learns_nothing": [Reason("no retry is better", "raise it")]},
         "learns little or nothing: no retry is better", "raise it"),
        ({"agent_alarms": [Alarm("little is trained", "train all")]},
         "agents: little is trained", "train all"),
    ],
)  # fmt: skip
def test_every_problem_is_named_with_what_to_do(changes, what, remedy):
    (found,) = problems(**changes)
    assert what in found.what and remedy in found.remedy


def test_a_run_that_its_budget_stopped_is_continued_with_more_of_it():
    used = {"budget.tokens": (1200.0, 1000.0), "budget.hours": (1.0, 9.0)}
    (stopped,) = findings(healthy(processes=[], budget=used))
    assert not stopped.problem and "step 12 of 60: budget.tokens=1000 is used up" in stopped.what
    assert stopped.remedy.endswith("--resume --run first budget.tokens=null")


def test_a_run_in_the_working_folder_is_named_with_its_folder():
    (ended,) = findings(healthy(processes=[], run="first"))
    assert ended.remedy == "continue it with r3l-launch --resume --run ./first"


def test_what_is_no_problem_is_a_hint_or_nothing():
    left = {"a.1": {"partial_continued": 4.0}, "a.2": {"partial_dropped": 1.0}}
    hints = findings(
        healthy(hangs=1, buffer=buffer(leases_expired=3, partial_dropped={"stale": 1}, actors=left))
    )
    assert not any(one.problem for one in hints)
    said = " | ".join(one.what for one in hints)
    gain = Reason("guidance gain: -0.11 ± 0.04 over another attempt", "set the gate")
    (hint,) = findings(healthy(processes=[], progress=Forecast(60, 60), guidance=gain))
    assert (hint.problem, hint.what, hint.remedy) == (False, gain.what, gain.remedy)
    assert "expired leases: 3" in said and "continued 4 of their attempts and dropped 2" in said
    assert "hangs of the learner: 1" in said
    drops, refused = {"no_contrast": 90, "stale": 9}, {"no_contrast": 90}
    train = {"trained": 100}
    assert problems(buffer=buffer(drops=drops, replaced=refused, train=train)) == []
    assert findings(healthy(processes=[], progress=Forecast(60, 60))) == []


def test_nothing_is_said_on_the_pace_while_a_reason_stands_why_the_run_learns_little():
    slow = Forecast(12, 60, session_waits=9.0, learner_idle=0.1, actor_idle=0.8)
    assert len(findings(healthy(progress=slow))) == 2
    note = Reason("no success yet in 99 attempts", "warm it up", "no success", alarm=False)
    for reason in (note, note._replace(alarm=True)):
        (found,) = findings(healthy(progress=slow, learns_nothing=[reason]))
        assert found.problem == reason.alarm and found.what.endswith(note.what)
        assert found.remedy == "warm it up"


@pytest.mark.parametrize(("waiting", "hints"), [(3.0, 0), (4.0, 1)])
def test_attempts_that_wait_for_the_environment_are_a_hint(waiting, hints):
    now = healthy(progress=Forecast(12, 60, session_waits=waiting))  # 30 requests are running
    said = [one for one in findings(now) if "wait for the environment" in one.what]
    assert len(said) == hints and all("raise env.workers" in one.remedy for one in said)


@pytest.mark.parametrize(
    ("learner", "actors", "what", "remedy"),
    [
        (0.62, 0.1, "the learner waits 62% .*: actor-bound", "at most 2.63"),
        (1.0, 0.0, "the learner waits 100% .*: actor-bound", "more actors"),
        (0.05, 0.74, "the actors wait 74% .*: learner-bound",
         "faster learner helps; 2 of 4"),
        (0.05, 0.06, "balanced: .* 5% .* 6%", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("processes", [ALL, []])
def test_what_limits_the_pace_is_named_and_by_how_much(processes, learner, actors, what, remedy):
    progress = Forecast(60, 60, learner_idle=learner, actor_idle=actors)
    several = [ActorState(f"actor-{n}.ab", f"actor-{n}", 0.1, 12, 1, 0.0) for n in range(4)]
    (found,) = findings(healthy(processes=processes, actors=several, progress=progress))
    assert re.fullmatch(what, found.what) and remedy in found.remedy and not found.problem


def test_the_command_ends_with_1_if_anything_is_wrong(ended):
    result = CliRunner().invoke(main, ["doctor", str(ended)])
    assert result.exit_code == 1
    assert result.output.startswith("problem  no process ") and "step 4 of 60\n" in result.output
    assert "r3l-launch --resume" in result.output
    (ended / "config.yaml").write_text("learner: {steps: 4}\n")
    result = CliRunner().invoke(main, ["doctor", str(ended)])
    assert result.exit_code == 0 and result.output.startswith("hint     reliance of the ")


@pytest.mark.parametrize("half", [True, False])
def test_a_store_that_is_cut_off_or_lost_and_lines_that_are_damaged_are_named(ended, half):
    file, progress = ended / "buffer" / "data.mdb", ended / "progress.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2]) if half else file.unlink()
    lines = progress.read_bytes().splitlines(keepends=True)
    progress.write_bytes(b"".join([*lines[:2], b"{}\n", *lines[3:]])[:-9])
    said = f"data.mdb has only {len(whole) // 2} of its" if half else "data.mdb is missing"
    result = CliRunner().invoke(main, ["doctor", str(ended)])
    assert result.exit_code == 1 and f"{said}" in result.output
    assert "damaged lines in progress.jsonl, all left out: 1" in result.output
    assert "the last line of progress.jsonl is cut off" in result.output
    result = CliRunner().invoke(main, ["status", str(ended)])
    assert result.exit_code == 0 and "the store cannot be read: " in result.output
    for words in (said, "damaged lines of progress.jsonl, all left out: 1", "line of progress.jso"):
        assert words in result.output
    assert CliRunner().invoke(main, ["report", str(ended)]).exit_code == 0
    page = (ended / "report.html").read_text()
    assert "1 damaged lines of progress.jsonl" in page and "which is cut off" in page

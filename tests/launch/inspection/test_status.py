"""The status of a run as text."""

import json

from click.testing import CliRunner

from launch.cli import main
from launch.inspection.agent_training import Alarm
from launch.inspection.learning import Reason
from launch.inspection.snapshot import Buffer, Forecast
from launch.inspection.status import lines, waits
from r3l.run.bill import Usage, line
from r3l.run.settings.costs import CostConfig
from tests.launch.fakes import refused
from tests.launch.inspection.snapshots import buffer, healthy, process


def text(snapshot):
    return "\n".join(lines(snapshot))


def test_every_process_says_what_it_does_and_when_the_next_step_ends():
    shown = text(healthy())
    assert "step 12 of 60, " in shown and " 4.0 s ago" in shown and "in about 6.0 s " in shown
    assert "the run ends in about 7.9 min" in shown
    rows = {line.split()[0]: line for line in shown.splitlines() if line[:1].isalpha()}
    assert rows["buffer"].endswith("replied in 2 ms") and " 11  sleeping " in rows["buffer"]
    assert rows["learner"].endswith("micro-batch 3 of 8, heartbeat 0.5 s ago")
    assert rows["actor-0"].endswith("30 requests, weights v12, idle 10%, heard 0.4 s ago")
    assert "weights v11 (1 behind)" in rows["actor-1"]


def test_why_a_run_learns_little_is_said_and_notes_are_told_apart():
    bad, note = Reason("bad", "raise it"), Reason("no success yet", "wait", alarm=False)
    shown = [*lines(healthy(learns_nothing=[bad, note]))]
    at = shown.index("learns little or nothing: bad; raise it")
    assert shown[at + 1] == "note on learning: no success yet; wait"


def test_who_waits_for_whom_is_said():
    (actor,) = waits(healthy())
    assert actor.startswith("actor-1 waits for a lease: 9 groups") and " 4 in work" in actor
    assert " at most 32 " in actor and actor.endswith("(buffer.max_staleness)")
    learner = next(waits(healthy(learner_doing="waiting for actors")))
    assert learner.startswith("the learner waits for actors, ") and learner.endswith(" 4 in work")
    assert " 4.0 s ago: 9 of 16 groups" in learner
    silent = healthy(buffer=Buffer("tcp://127.0.0.1:1", None, "no reply for 5 s"), actors=[])
    (everyone,) = waits(silent)
    assert everyone.endswith(" the buffer: no reply for 5 s")
    gone = healthy(processes=[process("learner", 12)], actors=[])
    assert "which is not running" in next(waits(gone))


def test_a_step_that_is_late_and_a_launcher_that_has_ended_are_said():
    late = healthy(progress=Forecast(12, 60, 30.0, 10.0, -20.0, 470.0), launcher=None)
    assert "overdue by 20.0 s" in text(late)
    assert "its launcher has ended" in text(late)


def test_the_bill_and_what_is_left_of_the_budget_are_said():
    assert "bill" not in text(healthy()) and "budget" not in text(healthy())
    used, budget = Usage(sampled=400.0), {"budget.tokens": (400.0, 1000.0)}
    shown = text(healthy(used=used, bill=line(used, CostConfig()), budget=budget))
    assert "\nbill: 400 tokens sampled, 0 read, " in shown
    assert "\nbudget.tokens=1000: 40% used\n" in shown + "\n"


def test_the_agents_of_all_actors_are_summed_up():
    assert "agents:" not in text(healthy())
    numbers = {"agent_calls": 800.0, "agents_running": 7.0}
    actors = {"actor-0.ab": numbers, "actor-1.cd": numbers, "old.ef": {"agents_running": 0.0}}
    stats = buffer(actors=actors, slot_drops={"base/agent_exit": 3})
    line = "agents: 14 running, 1,600 calls, 3.5 a second in the last step"
    shown = text(healthy(buffer=stats, progress=Forecast(1, 9, 1.0, calls_per_s=3.5)))
    assert f"{line}; failed slots: base/agent_exit 3" in shown
    assert "trained" not in shown


def test_what_is_trained_of_agents_and_the_models_that_they_ask_are_shown():
    numbers = {"agent_calls": 8.0, "tokens_sampled": 50.0, "tokens_trained": 20.0,
               "tokens_untrained_side": 30.0, "asked_policy": 6.0, "asked_gpt-4o": 2.0}  # fmt: skip
    stats = buffer(actors={"actor-0.ab": numbers, "actor-1.cd": numbers})
    shown = text(healthy(buffer=stats, agent_train="main", agent_alarms=[Alarm("odd", "do it")]))
    assert "trained: 40% of the sampled tokens (actor.agent.train=main); not trained: 60%" in shown
    assert "calls by the name of the model: policy 12, gpt-4o 4" in shown
    assert "  odd; do it" in shown


def test_a_run_that_has_ended_shows_its_last_errors(ended):
    (ended / "logs" / "learner.log").write_text("fine\nValueError: shape\nERROR no room\n")
    result = CliRunner().invoke(main, ["status", str(ended)])
    assert result.exit_code == 0
    assert "no process of this run" in result.output
    assert "groups: trained 40; a step takes 16" in result.output
    assert "  learner: ValueError: shape\n  learner: ERROR no room\n" in result.output
    values = json.loads(CliRunner().invoke(main, ["status", str(ended), "--json"]).output)
    assert (values["progress"]["step"], values["waits"]) == (4, [])
    assert "has no config.yaml" in refused("status", ended / "other")

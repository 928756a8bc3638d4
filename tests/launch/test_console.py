"""The lines of steps, evaluations, notices and what still starts."""

from pathlib import Path

import pytest

from launch import console
from launch.console import (
    NoticeReader,
    Startup,
    bill_line,
    end_lines,
    eval_line,
    step_line,
    who_waits,
)
from r3l.run import bill
from r3l.run.bill import Usage
from r3l.run.config import load
from r3l.run.files.progress_lines import StepLine
from r3l.run.files.run_folder import RunFolder
from r3l.run.settings.costs import CostConfig
from tests.r3l.files.made import evaluation


def test_what_still_starts_is_said_every_few_seconds_until_all_are_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    startup, ready = Startup(), {"buffer": True, "learner": False, "actor-0": False}
    assert startup.line(ready) == ""
    now[0] += 5
    wait = "learner loads its libraries and the model, actor-0 starts its engine"
    assert startup.line(ready) == f"5 s: {wait}"
    now[0] += 4
    assert startup.line(ready) == ""
    now[0] += 1
    assert startup.line(ready | {"learner": True}) == "10 s: actor-0 starts its engine"
    now[0] += 10
    many = {f"actor-{index}": index == 5 for index in range(16)}
    assert startup.line(many) == "20 s: 15 actors start their engines"
    now[0] += 50
    assert startup.line(dict.fromkeys(ready, True)) == "" and startup.ended
    assert startup.line(ready) == ""


def test_notices_of_all_logs_are_read_once_after_the_name_of_their_process(tmp_path: Path) -> None:
    (tmp_path / "learner.log").write_text("r3l-notice: of an earlier run\n")
    reader = NoticeReader(tmp_path)
    (tmp_path / "actor-0.log").write_text("starts\nr3l-notice: the disk is full\nr3l-notice: ha")
    with (tmp_path / "learner.log").open("a") as log:
        log.write("node-1: r3l-notice: step 3 skipped\n")
    assert reader.new() == ["learner: step 3 skipped", "actor-0: the disk is full"]
    with (tmp_path / "actor-0.log").open("a") as log:
        log.write("lf\n")
    assert reader.new() == ["actor-0: half"] and reader.new() == []


def test_a_step_line_shows_what_was_measured_and_a_dash_for_the_rest() -> None:
    values = {
        "group/reward_mean": 0.5, "group/success_base": 0.25, "staleness/mean": 1.25,
        "staleness/max": 3.0, "actor/tokens_per_s": 812.4, "learner/idle_share": 0.1,
        "actor/idle_share": 0.6,
    }  # fmt: skip
    line = step_line([StepLine(7, values)], 100)
    assert line.startswith("step   7/100  reward 0.50  success base 0.25 retry   –   trigger   – ")
    assert line.endswith("staleness 1.2 max 3  812 tok/s  actors idle 60 %: learner-bound")
    assert "learner idle 70 %: actor-bound" in step_line(
        [StepLine(7, values | {"learner/idle_share": 0.7})], 100
    )


def test_a_step_line_shows_when_all_steps_will_be_done_once_two_are() -> None:
    recent = [StepLine(step, {}, 60.0 * step) for step in (7, 8, 9)]
    assert step_line(recent, 100).startswith("step   9/100  ETA 1.5 h  reward")
    assert "ETA" not in step_line(recent[:1], 100) + step_line(recent, 9)


def test_a_step_line_shows_what_the_run_has_used() -> None:
    values = bill.metrics(Usage(sampled=2.5e6), CostConfig(per_million_tokens=2))
    assert "tok/s  used 2.50M tok amount 5.00  balanced" in step_line([StepLine(1, values)], 9)


def test_the_last_line_is_the_bill_and_says_which_budget_ended_the_run(tmp_path: Path) -> None:
    config = load(None, ["budget.tokens=1000", "learner.steps=9"])
    assert bill_line(tmp_path, config, 4) == ""
    RunFolder(tmp_path).write_bill({"a": Usage(sampled=999)})
    whole = "bill: 999 tokens sampled, 0 read, 0 trained; 0 hours, 0 of CPU, 0 of GPU"
    assert bill_line(tmp_path, config, 4) == whole
    RunFolder(tmp_path).write_bill({"a": Usage(sampled=999), "b": Usage(trained=11)})
    said = bill_line(tmp_path, config, 4)
    assert said.endswith(
        "; budget.tokens=1000 is used up (1010): ended at step 4 of 9 with a checkpoint, continue "
        f"with r3l-launch --resume --run {tmp_path} budget.tokens=2020"
    )
    assert bill_line(tmp_path, config, 9).endswith("ended at step 9 of 9 with a checkpoint")


def test_a_step_line_shows_what_guidance_gained_if_it_was_measured() -> None:
    line = step_line([StepLine(1, {"group/guidance_gain": 0.031})], 9)
    assert "trigger   –   gain +0.03  staleness" in line
    gains = {"group/guidance_gain": 0.621, "group/guidance_gain_se": 0.048}
    assert "gain +0.62 ± 0.05  staleness" in step_line([StepLine(1, gains)], 9)
    equal = gains | {"group/guidance_gain_se": 0.0}  # two retries with one result say nothing of it
    assert "gain +0.62  staleness" in step_line([StepLine(1, equal)], 9)


def test_lengths_and_what_is_cut_off_are_shown_of_steps_and_evaluations() -> None:
    step = {"group/length_mean": 812.4, "group/length_p95": 1200, "group/length_max": 2100}
    line = step_line([StepLine(1, step)], 9)
    assert "trigger   –   tokens 812 p95 1200 max 2100  staleness" in line
    cut = {"group/cut_attempts": 0.5, "group/cut_responses": 0.02}
    line = step_line([StepLine(1, step | cut)], 9)
    assert "max 2100  cut off 50% of attempts, 2% of responses  staleness" in line
    assert "cut off" not in step_line([StepLine(1, step | {"group/cut_attempts": 0.004})], 9)
    lengths = {"length_mean": 30, "length_p95": 40, "length_max": 50, "cut_attempts": 1.0}
    shown = "tokens 30 p95 40 max 50  cut off 100% of attempts, 0% of responses  (20 tasks)"
    assert eval_line(evaluation(5, tasks=20, **lengths)).endswith(f"steps 3.5  {shown}")


def test_an_eval_line_shows_failed_tasks_with_share_and_causes_only_if_there_are_any() -> None:
    line = "eval at step 5: success 0.50  reward 0.25  steps 3.5  (20 tasks"
    assert eval_line(evaluation(5, tasks=20)) == line + ")"
    assert eval_line(evaluation(5, tasks=20, failed=2)) == line + ", 2 failed (10%))"
    causes = {"failed_environment_hang": 1.0, "failed_environment_KeyError": 4.0}
    named = ", 5 failed (25%): environment_KeyError 4, environment_hang 1)"
    assert eval_line(evaluation(5, tasks=20, failed=5, **causes)) == line + named


def test_a_step_line_shows_agents_and_the_causes_of_failures_only_if_there_are_any() -> None:
    agents = {"agent/running": 12.0, "agent/calls_per_s": 3.42}
    failed = {"group/failed_no_reward": 1.0, "group/failed_agent_exit": 2.0}
    line = step_line([StepLine(1, agents | failed)], 9)
    assert "agents 12 with 3.4 calls/s  failed agent_exit 2, no_reward 1  staleness" in line
    line = step_line([StepLine(1, agents | {"agent/trained_share": 0.615})], 9)
    assert "agents 12 with 3.4 calls/s, 62% of their tokens to train  staleness" in line
    line = step_line([StepLine(1, {"agent/running": 0.0})], 9)
    assert "agents" not in line and "failed" not in line


def test_who_waits_is_said_in_words_of_the_field() -> None:
    def words(learner: float, actors: float) -> str:
        return who_waits({"learner/idle_share": learner, "actor/idle_share": actors})

    assert words(0.02, 0.74) == "actors idle 74 %: learner-bound"
    assert words(0.6, 0.3) == "learner idle 60 %: actor-bound"
    assert words(0.05, 0.04) == "balanced: learner idle 5 %, actors idle 4 %"


def test_the_end_of_a_run_says_where_its_model_is_and_what_to_do_next(tmp_path: Path) -> None:
    assert end_lines(Path("runs/first"))[-1].startswith("next: r3l-eval --run first; ")
    (tmp_path / "model").mkdir()
    assert end_lines(tmp_path)[0] == f"model: {tmp_path}/model (last step)"
    (tmp_path / "best").mkdir()
    model, after = end_lines(tmp_path)
    assert model.startswith(f"model: {tmp_path}/best (best evaluation), {tmp_path}/model")
    assert f"r3l-eval --run {tmp_path};" in after

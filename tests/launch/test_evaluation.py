"""Evaluations: figures, resuming, repeating themselves, what a user can get wrong."""

import asyncio
import json
import math
import shutil
from functools import partial

import pytest
from click.testing import CliRunner

from envs import registry
from envs.builtin.policy import builtin_policy
from launch.eval_cli import main
from launch.evaluation import Result, Results, figures, play_all, report, table
from r3l.config import RunConfig, load
from r3l.errors import EngineDead, UserError
from tests.r3l.fakes import ScriptedPolicy
from tests.r3l.rollout.test_chat import FORGETFUL, tokenizer_for

CONFIG: RunConfig = load(None, ["env=keys", "eval.temperature=0"])


def evaluate(folder, policy, tasks, attempts=1, settings=None):
    results = Results(folder, settings or {"seed": 0})
    make_env = partial(registry.make, "keys")
    try:
        asyncio.run(play_all(tasks, attempts, results, policy, make_env, CONFIG, at_once=3))
    finally:
        results.close()
    return results


def tasks(count):
    return registry.tasks("keys", {}, "eval", count)


def test_every_task_is_played_as_often_as_asked_each_with_a_seed_of_its_own(tmp_path):
    policy = ScriptedPolicy(lambda prompt: "turn brass")
    results = evaluate(tmp_path, policy, tasks(4), attempts=2)
    assert {key[1] for key in results.done} == {0, 1} and len(results.done) == 8
    assert {p.temperature for p in policy.asked} == {0.0}
    assert len({p.seed for p in policy.asked}) == len(policy.asked)


def test_an_evaluation_that_was_interrupted_goes_on_and_ends_like_one_that_was_not(tmp_path):
    answer = ScriptedPolicy(lambda prompt: "turn iron")
    whole = evaluate(tmp_path / "whole", answer, tasks(6), attempts=2)

    played = []

    def dying(prompt):
        played.append(prompt)
        if len(played) > 25:
            raise EngineDead("gone")
        return "turn iron"

    with pytest.raises(EngineDead):
        evaluate(tmp_path / "cut", ScriptedPolicy(dying), tasks(6), attempts=2)
    file = tmp_path / "cut" / "results.jsonl"
    kept = len(file.read_text().splitlines())
    assert 0 < kept < 12
    with file.open("a") as torn:
        torn.write('{"task_id": "keys/ev')
    counting = ScriptedPolicy(lambda prompt: "turn iron")
    resumed = evaluate(tmp_path / "cut", counting, tasks(6), attempts=2)
    assert resumed.done == whole.done
    assert len(file.read_text().splitlines()) == 12
    assert len(counting.asked) < len(answer.asked)


def test_failed_attempts_are_played_again_and_count_as_lost_until_then(tmp_path):
    failed = Result("keys/eval/000000", 0, cause="environment_hang")
    results = Results(tmp_path, {})
    results.add(failed)
    results.close()
    assert figures([failed], 1, [])["success"]["mean"] == 0.0
    assert figures([failed], 1, [])["failed"] == {"environment_hang": 1}
    assert Results(tmp_path, {}).done == {}


def test_troubles_that_attempts_outlived_are_kept_and_counted(tmp_path):
    results = Results(tmp_path, {})
    results.add(Result("t", 0, faults=["scorer_ValueError"] * 2))
    results.close()
    (kept,) = Results(tmp_path, {}).done.values()
    assert figures([kept], 1, [])["faults"] == {"scorer_ValueError": 2}


def test_a_folder_of_another_evaluation_is_refused_and_says_what_differs(tmp_path):
    Results(tmp_path, {"seed": 7, "split": "eval"})  # of which nothing was played
    results = Results(tmp_path, {"seed": 0, "split": "eval"})
    results.add(Result("t", 0))
    results.close()
    with pytest.raises(UserError, match=r"holds an evaluation with seed 0, this one has 1"):
        Results(tmp_path, {"seed": 1, "split": "eval"})
    for damaged in (b"", b"[]", b"5", b"\xff"):
        (tmp_path / "settings.json").write_bytes(damaged)
        with pytest.raises(UserError, match=r"is no JSON|holds an evaluation with seed None"):
            Results(tmp_path, {"seed": 0, "split": "eval"})


@pytest.mark.parametrize("line", [b"nope", b"[1]", b"{}", b"\xff"])
def test_a_results_file_with_a_damaged_line_is_refused_by_name(tmp_path, line):
    (tmp_path / "results.jsonl").write_bytes(line + b"\n")
    with pytest.raises(UserError, match=r"results\.jsonl holds a line that is no result"):
        Results(tmp_path, {})


def some_results():
    """Two families, two tasks each, two attempts; rewards 1 0 / 0 0 and 1 1 / 1 0."""
    rewards = {"a0": (1, 0), "a1": (0, 0), "b0": (1, 1), "b1": (1, 0)}
    return [
        Result(task, n, task[0], float(reward), steps=2 + n, tokens=10)
        for task, each in rewards.items()
        for n, reward in enumerate(each)
    ]


def test_figures_are_means_over_tasks_with_intervals_and_by_family():
    found = report(some_results(), 2, [2])
    assert found["all"]["success"]["mean"] == 0.5
    assert found["all"]["pass@2"]["mean"] == 0.75
    assert found["families"]["a"]["success"]["mean"] == 0.25
    assert found["families"]["b"]["pass@2"]["mean"] == 1.0
    assert found["all"]["steps"]["mean"] == 2.5 and found["all"]["tasks"] == 4
    success = found["all"]["success"]
    assert 0 < success["low"] < 0.5 < success["high"] < 1
    assert "Wilson" in found["interval"] and "bootstrap" in found["interval"]


def test_the_table_has_a_line_for_all_tasks_and_one_for_each_family():
    lines = table(report(some_results(), 2, [2])).splitlines()
    assert lines[0].split()[:5] == ["tasks", "failed", "faults", "success", "pass@2"]
    assert [line.split()[0] for line in lines[1:4]] == ["all", "a", "b"]


def test_figures_without_a_played_attempt_are_empty_and_not_an_error():
    found = report([Result("t", 0, cause="x")], 1, [])
    assert found["all"]["steps"]["mean"] is None
    assert "nan" not in json.dumps(found) and not math.isnan(found["all"]["success"]["high"])
    assert "–" in table(found)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "nowhere"], "nowhere"),
        (["--model", "/no/such"], "/no/such"),
        (["--pass-at", "2"], "--attempts 1"),
        (["--env", "gsm8k", "env.options.eval=/no/such.jsonl"], "/no/such.jsonl"),
        (["--env", "aime24", "--split", "train"], "aime24: has no train problems"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line_and_exit_code_2(arguments, says, tmp_path):
    result = CliRunner().invoke(main, ["--out", str(tmp_path / "out"), *arguments])
    assert result.exit_code == 2 and says in result.output
    assert len(result.output.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_an_engine_that_is_not_there_is_named_before_anything_is_played(tmp_path):
    arguments = ["--out", str(tmp_path), "--engine", "http://127.0.0.1:9", "--tasks", "1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and "vllm serve" in result.output


def test_an_evaluation_that_is_done_is_shown_again_without_an_engine(tmp_path, monkeypatch):
    import launch.evaluation as evaluation

    async def fake(tasks, attempts, results, *_, **__):
        for task in tasks:
            results.add(Result(task.task_id, 0, reward=1.0, steps=3, tokens=9))

    class Nothing:
        async def __aenter__(self):
            return None

        async def __aexit__(self, *_):
            return None

    monkeypatch.setattr(evaluation, "play_all", fake)
    monkeypatch.setattr("launch.eval_cli._policy", lambda *_: Nothing())
    arguments = ["--out", str(tmp_path), "--tasks", "5", "--json"]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 0, first.output
    monkeypatch.setattr("launch.eval_cli._policy", lambda *_: pytest.fail("started an engine"))
    again = CliRunner().invoke(main, arguments)
    assert json.loads(again.output) == json.loads(first.output)
    assert json.loads(again.output)["all"]["success"]["mean"] == 1.0
    assert (tmp_path / "report.json").exists() and list((tmp_path / "tensorboard").iterdir())


def test_a_model_trained_without_earlier_reasoning_is_evaluated_as_it_was_trained(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    tokenizer_for(FORGETFUL).save_pretrained(model)
    arguments = [
        "--model",
        str(model),
        "--engine",
        "http://127.0.0.1:9",
        "--out",
        str(tmp_path / "o"),
    ]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2 and "actor.earlier_reasoning=keep" in refused.output
    kept = CliRunner().invoke(main, [*arguments, "actor.earlier_reasoning=keep"])
    assert "no vLLM server answers there" in kept.output

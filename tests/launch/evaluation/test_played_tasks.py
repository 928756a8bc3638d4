"""Evaluations: metrics, results that are kept, and going on after an interruption."""

import asyncio
import json
import math

import pytest

from envs import registry
from launch.evaluation.played_tasks import (
    Result,
    Results,
    cut_off,
    metrics,
    play_all,
    report,
    table,
)
from r3l.config import RunConfig, load
from r3l.errors import EngineDead, UserError
from tests.r3l.fakes import ScriptedPolicy

CONFIG: RunConfig = load(None, ["env=keys", "eval.temperature=0"])


def evaluate(folder, policy, tasks, attempts=1, settings=None, config=CONFIG):
    results = Results(folder, settings or {"seed": 0})

    def make_env(task):
        return registry.make(task.env)

    try:
        asyncio.run(play_all(tasks, attempts, results, policy, make_env, config, at_once=3))
    finally:
        results.close()
    return results


def tasks(count):
    return registry.tasks("keys", {}, "eval", count)


def test_every_task_is_played_the_asked_number_of_times_each_with_its_own_seed(tmp_path):
    policy = ScriptedPolicy(lambda prompt: "turn brass")
    results = evaluate(tmp_path, policy, tasks(4), attempts=2)
    assert {key[1] for key in results.done} == {0, 1} and len(results.done) == 8
    assert {p.temperature for p in policy.asked} == {0.0}
    assert len({p.seed for p in policy.asked}) == len(policy.asked)


def test_each_of_several_environments_is_a_family_of_its_own(tmp_path):
    several = load(None, ["env=keys", "env.others.workshop={}"])
    both = registry.tasks_of_all(several.env, "eval", 3)
    played = evaluate(tmp_path, ScriptedPolicy(lambda _: "turn iron"), both, config=several)
    found = report(list(played.done.values()), 1, [])
    assert {name: one["tasks"] for name, one in found["families"].items()} == {
        "keys": 1,
        "workshop": 2,
    }


def test_an_interrupted_evaluation_goes_on_and_ends_like_an_uninterrupted_one(tmp_path):
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


def test_failed_attempts_earn_nothing_and_are_played_again(tmp_path):
    failed = Result("keys/eval/000000", 0, cause="environment_hang")
    results = Results(tmp_path, {})
    results.add(failed)
    results.close()
    assert metrics([failed], 1, [])["success"]["mean"] == 0.0
    assert metrics([failed], 1, [])["failed"] == {"environment_hang": 1}
    assert Results(tmp_path, {}).done == {}


def test_faults_that_attempts_survived_are_kept_and_counted(tmp_path):
    results = Results(tmp_path, {})
    results.add(Result("t", 0, faults=["scorer_ValueError"] * 2))
    results.close()
    (kept,) = Results(tmp_path, {}).done.values()
    assert metrics([kept], 1, [])["faults"] == {"scorer_ValueError": 2}


def test_what_was_cut_off_is_counted_shown_and_above_a_fifth_warned_of():
    found = report(
        [
            *[Result(f"t{n}", 0, tokens=5, length=100 + n) for n in range(16)],
            Result("a", 0, finish="context_overflow", length=4096, cut=3),
            Result("b", 0, finish="terminated", length=200, cut=1),
            Result("c", 0, finish="context_overflow", length=4096),
            Result("d", 0, cause="context_overflow"),
        ],
        1,
        [],
    )
    assert found["all"]["cut"] == {"context": 3, "budget": 1}
    assert (found["all"]["length"]["p95"], found["all"]["length"]["max"]) == (4096.0, 4096.0)
    assert cut_off(found) == ""
    found["all"]["cut"] = {"context": 5, "budget": 10}
    assert cut_off(found) == (
        "25% of the attempts were cut off by the context: raise actor.max_model_len; "
        "50% of the attempts were cut off by the budget: raise actor.max_response_tokens"
    )
    assert "length" in table(found).splitlines()[0]


def test_a_folder_of_another_evaluation_is_refused_and_says_what_differs(tmp_path):
    Results(tmp_path, {"seed": 7, "split": "eval"})  # of which nothing was played
    results = Results(tmp_path, {"seed": 0, "split": "eval"})
    results.add(Result("t", 0))
    results.close()
    with pytest.raises(UserError, match=r"holds an evaluation with seed 0, this one has 1"):
        Results(tmp_path, {"seed": 1, "split": "eval"})
    for damaged in (b"", b"[]", b"5", b"\xff"):
        (tmp_path / "settings.json").write_bytes(damaged)
        with pytest.raises(
            UserError, match=r"is not valid JSON|holds an evaluation with seed None"
        ):
            Results(tmp_path, {"seed": 0, "split": "eval"})


@pytest.mark.parametrize("line", [b"nope", b"[1]", b"{}", b"\xff"])
def test_a_results_file_with_a_damaged_line_is_refused_by_name(tmp_path, line):
    (tmp_path / "results.jsonl").write_bytes(line + b"\n")
    with pytest.raises(UserError, match=r"results\.jsonl has a line that is not a result"):
        Results(tmp_path, {})


def some_results():
    """Two families, two tasks each, two attempts; rewards 1 0 / 0 0 and 1 1 / 1 0."""
    rewards = {"a0": (1, 0), "a1": (0, 0), "b0": (1, 1), "b1": (1, 0)}
    return [
        Result(task, n, task[0], float(reward), steps=2 + n, tokens=10)
        for task, each in rewards.items()
        for n, reward in enumerate(each)
    ]


def test_metrics_are_means_over_tasks_with_intervals_and_by_family():
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
    assert lines[0].split()[:6] == ["tasks", "failed", "faults", "cut", "success", "pass@2"]
    assert [line.split()[0] for line in lines[1:4]] == ["all", "a", "b"]


def test_metrics_without_a_played_attempt_are_empty_and_not_an_error():
    found = report([Result("t", 0, cause="x")], 1, [])
    assert found["all"]["steps"]["mean"] is None
    assert "nan" not in json.dumps(found) and not math.isnan(found["all"]["success"]["high"])
    assert "–" in table(found)

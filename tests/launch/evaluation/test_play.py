"""Playing the attempts of an evaluation, continuing after an interruption, and its engine."""

import asyncio
import os

import pytest

from envs import registry
from launch.evaluation.play import output_into, own_engine, play_all
from learner.evaluation.evaluation_folder import EvaluationFolder, read_attempts
from learner.evaluation.metrics import report
from r3l.errors import EngineDead
from r3l.run.config import RunConfig, load
from tests.learner.evaluation.fakes import attempted
from tests.r3l.fakes import ScriptedPolicy

CONFIG: RunConfig = load(None, ["env=keys", "eval.temperature=0"])


def evaluate(folder, policy, tasks, attempts=1, settings=None, config=CONFIG):
    results = EvaluationFolder(folder, settings or {"seed": 0})

    def make_env(task):
        return registry.make(task.env)

    asyncio.run(play_all(tasks, attempts, results, policy, make_env, config, at_once=3))
    return results


def tasks(count):
    return registry.tasks("keys", {}, "eval", count)


def test_every_task_is_played_the_asked_number_of_times_each_with_its_own_seed(tmp_path):
    policy = ScriptedPolicy(lambda prompt: "turn brass")
    results = evaluate(tmp_path, policy, tasks(4), attempts=2)
    assert {key[1] for key in results.done} == {0, 1} and len(results.done) == 8
    assert {p.temperature for p in policy.asked} == {0.0}
    assert len({p.seed for p in policy.asked}) == len(policy.asked)


def test_the_exact_probability_is_that_of_each_tasks_first_attempt_in_the_first_part(tmp_path):
    class Scoring(ScriptedPolicy):
        async def score(self, token_ids, start):
            return (-1.0, *[0.0] * (len(token_ids) - start - 1))

    config = load(None, ["env=keys", "env.options={locks: 1, steps: 1}", "eval.exact=true"])
    one = registry.tasks("keys", {"locks": 1, "steps": 1}, "eval", 2)

    def make_env(task):
        return registry.make("keys", locks=1, steps=1)

    for temperature, measured in ((None, 2), (0.0, 0)):
        results = EvaluationFolder(tmp_path / str(temperature), {})
        policy = Scoring(lambda prompt: "turn brass")
        asyncio.run(
            play_all(one, 2, results, policy, make_env, config, at_once=3, temperature=temperature)
        )
        scores = {key: attempt.scores for key, attempt in results.done.items() if attempt.scores}
        assert len(scores) == measured and all(attempt == 0 for _, attempt in scores)
        assert {p.temperature for p in policy.asked} == {0.4 if temperature is None else 0.0}
    assert all(each == {"exact": pytest.approx(1.0)} for each in scores.values())


def test_each_of_several_environments_is_a_family_of_its_own(tmp_path):
    several = load(None, ["env=keys", "env.others.workshop={}"])
    both = registry.tasks_of_all(several.env, "eval", 3)
    played = evaluate(tmp_path, ScriptedPolicy(lambda _: "turn iron"), both, config=several)
    found = report(list(played.done.values()))
    assert {name: one.tasks for name, one in found.families.items()} == {
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


def test_what_the_policy_and_the_environment_said_is_kept(tmp_path):
    played = evaluate(tmp_path, ScriptedPolicy(lambda prompt: "listen"), tasks(1))
    (kept,) = read_attempts(tmp_path, "--read")
    assert played.done == {kept.key: kept}
    assert kept.system and {step.action for step in kept.steps} == {"listen"}
    assert all(step.observation and step.length for step in kept.steps) and kept.last
    assert sum(step.reward for step in kept.steps) == pytest.approx(kept.reward)
    assert kept.finish and kept.length > kept.generated > 0


def test_failed_attempts_are_played_again(tmp_path):
    (task,) = tasks(1)
    folder = EvaluationFolder(tmp_path, {"seed": 0})
    folder.add(attempted(task.task_id, 0, cause="environment_hang"))
    again = EvaluationFolder(tmp_path, {"seed": 0})
    assert again.done[task.task_id, 0].cause == "environment_hang"
    evaluate(tmp_path, ScriptedPolicy(lambda prompt: "turn iron"), [task])
    assert [one.cause for one in read_attempts(tmp_path, "--read")] == [""]


def test_what_others_print_is_not_between_the_json(tmp_path, capfd):
    with output_into(tmp_path / "log"):
        os.write(1, b"an engine starts\n")
        os.system("echo so does its process >&2")
    print("{}")
    assert capfd.readouterr() == ("{}\n", "")
    assert (tmp_path / "log").read_text() == "an engine starts\nso does its process\n"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (b"its own words\n", r"did not start \(log: .*/log\)"),
        (
            b"  at line 3\nValueError: no memory is free\n",
            r"did not start: ValueError: no memory is",
        ),
    ],
)
def test_an_engine_that_does_not_start_is_named_with_its_log(
    tmp_path, monkeypatch, capfd, printed, said
):
    def start(model, actor, *, seed):
        os.write(1, printed)
        raise EngineDead("the engine did not start")

    monkeypatch.setattr("actors.engine.VLLMPolicy.start", start)

    async def begin():
        async with own_engine(load(), tmp_path / "log"):
            pass

    with pytest.raises(EngineDead, match=said):
        asyncio.run(begin())
    assert capfd.readouterr().out == ""

"""The experiments with a real language model, without the model."""

import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs import registry
from envs.base import Demonstrating, Skill
from lab.real_model import calculator, doses, page, training
from lab.real_model.probe import WAYS, Probe, Slot, Thought, configured, gain, summary
from lab.real_model.sums import worked
from lab.results.lines import read_lines
from r3l.records import Trajectory
from r3l.rollout import reflection
from r3l.run.files import json_lines
from r3l.run.files.progress_lines import EvalLine, StepLine, to_json
from tests.r3l.fakes import ScriptedPolicy


def sums() -> Demonstrating:
    return registry.make(doses.world().name, **doses.world().options)


def test_a_sum_is_added_term_by_term() -> None:
    asked = "State the final answer to the following arithmetic problem: 3 - 4 + 9 ="
    assert worked(asked) == "3 - 4 = -1, -1 + 9 = 8"


def test_the_teacher_corrects_a_wrong_answer_and_keeps_a_right_one() -> None:
    env, rng = sums(), random.Random(0)
    for skill, outcome in ((Skill(), "success"), (Skill(mistakes=0.1), "failure")):
        env.reset(seed=5)
        env.step(env.demonstrate(skill, rng))
        thought = reflection.parse(json.dumps(env.reflection()), 1)
        assert thought.trajectory_outcome == outcome
        if outcome == "failure":
            assert thought.improvement_suggestion == env.demonstrate(Skill(), rng)
            told = env.demonstrate(skill, rng, thought.improvement_suggestion)
            assert told == thought.improvement_suggestion


def test_the_answers_of_dose_0_are_conversations_with_right_answers(monkeypatch) -> None:
    monkeypatch.setattr(doses, "ANSWERS", 3)
    for line in doses.answers():
        system, user, assistant = json.loads(line)["messages"]
        assert system["role"] == "system" and user["content"].endswith("=")
        assert (
            assistant["content"] == f"<answer>{worked(user['content']).split(' = ')[-1]}</answer>"
        )


def slot(task: int, reward: float, text: str = "{}", **retries: float) -> Slot:
    base = Trajectory(
        slot=0, token_ids=np.arange(5, dtype=np.int32),
        logprobs=np.zeros(5, np.float32), step_spans=np.array([[3, 5]], np.int32),
        step_versions=np.zeros(1, np.int32), step_newest_versions=np.zeros(1, np.int32),
        step_seconds=np.zeros(1, np.float32), reward=reward, system="", observations=("o", "p"),
        actions=("a",), finish="terminated",
    )  # fmt: skip
    thought = Thought(text, 7, cause="not_json")
    ways = dict.fromkeys(("free", "schema", "outcome first"), thought)
    return Slot(task, base, ways, retries)


def test_a_gain_compares_a_retry_with_the_other_attempts_at_its_task() -> None:
    slots = [slot(0, 0.0, own=1.0), slot(0, 1.0), slot(0, 0.0, own=0.0), slot(1, 0.0, own=0.0)]
    # task 0: 1 - (1 + 0) / 2 and 0 - (0 + 1) / 2; task 1 has no other attempt
    assert gain(slots, "own") == {"gain": 0.0, "se": 0.0, "pairs": 2}
    found = summary(slots)
    assert found["success"] == 0.25 and found["ways"]["free"]["causes"] == {"not_json": 4}


def reply(prompt: str) -> str:
    """Answers wrongly, unless advice names an answer; reflects with advice that names none."""
    if "trajectory_outcome" in prompt:
        values = ("guessed", "add up", "failure", "think", 0)
        return json.dumps(dict(zip(reflection.FIELDS, values, strict=True)))
    _, advised, advice = prompt.partition("Advice from a review")
    told = re.search("<answer>-?[0-9]+</answer>", advice) if advised else None
    return told[0] if told else "<answer>-999</answer>"


def test_every_failure_is_retried_under_every_kind_of_guidance() -> None:
    config = configured(Path("builtin"), ["actor.max_reflection_tokens=999"])
    policy = ScriptedPolicy(reply)
    run = Probe(policy, config)
    tasks = registry.tasks(config.env.name, config.env.options, "eval", 2)

    async def probed() -> list[Slot]:
        slots = [each for i, task in enumerate(tasks) for each in await run.slots(i, task)]
        for place, each in enumerate(slots):
            await run.retry(each, tasks[each.task], run.guidance(place, slots, tasks[each.task]))
        return slots

    slots = asyncio.run(probed())
    own = [f"own {way}" for way in WAYS]
    assert [each.task for each in slots] == [0] * 4 + [1] * 4
    for each in slots:
        assert [*each.thoughts] == [*WAYS] and all(t.parsed for t in each.thoughts.values())
        kinds = dict.fromkeys(["plain", *own, "another", "empty"], 0.0)
        assert each.retries == kinds | {"right": 1.0}
    schemas = [params.json_schema for params in policy.asked if params.max_tokens == 999]
    assert sorted(Counter(map(json.dumps, schemas)).values()) == [8, 8, 8]
    assert schemas.count(None) == 8


def test_a_line_of_a_run_adds_up_its_steps(tmp_path: Path) -> None:
    step = {"group/generated_tokens": 100, "group/success_base": 0.5,
            "learner/tokens_per_s": 50.0, "learner/step_s": 2.0}  # fmt: skip
    before = dict.fromkeys(("success", "reward", "steps", "tasks", "failed"), 0.1)
    after = before | {"success": 0.3}
    lines = (EvalLine(0, before), StepLine(1, step), StepLine(2, step), EvalLine(2, after))
    for each in lines:
        json_lines.append(tmp_path / "progress.jsonl", to_json(each))
    for steps, learner in ((1, 5.0), (2, 3.5)):  # the learner was started again
        parts = {"learner": learner, "engine": float(steps)}
        json_lines.append(tmp_path / training.CPU, {"steps": steps, "parts": parts})
    line = training.line_of(tmp_path)
    assert line["curve"]["tokens"] == [100, 200] and line["curve"]["trained"] == [100, 200]
    assert line["curve"]["cpu"] == [6.0, 10.5] and line["evaluations"] == [[0, 0.1], [2, 0.3]]
    assert page.after_start(line) == 0.3 and line["parts"] == {"learner": 8.5, "engine": 2.0}


def test_the_page_is_that_of_the_lines() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(read_lines(page.FILE))


def test_a_run_in_the_workshop_counts_the_steps_to_the_first_evaluation_that_is_high_enough() -> (
    None
):
    curve = {"tokens": [9], "trained": [9], "cpu": [None], "wall": [0.0]}
    run = {"machine": "M", "variant": "r3l", "seed": 2, "curve": curve}
    run["evaluations"] = [[0, 0.1], [5, 0.5], [10, 0.4]]
    assert (
        page.workshop([run]).splitlines()[-1]
        == "| M | R³L | 0.10 | 5 | – | 0.40 | 9 | 9 | 0 | 0 | 2 |"
    )


def test_an_interval_is_over_three_warm_policies_and_no_other_machines_runs() -> None:
    assert page.listed([0.25], [0.25], 2) == "0.25"
    assert page.listed([0.25, 0.3], [0.2, 0.3, 0.3], 3) == "0.267 (0.200, 0.300, 0.300)"
    assert page.listed([0.2, 0.3, 0.4], [], 3) == "0.300 ± 0.248"
    curve = {"tokens": [9], "trained": [9], "cpu": [4], "wall": [0.0]}
    runs = [
        {"machine": machine, "dose": 200, "variant": "r3l", "seed": seed, "curve": curve,
         "evaluations": [[0, first], [5, 0.5]]}
        for machine, seed, first in (
            ("AMD EPYC", 1, 0.1), ("AMD EPYC", 2, 0.2), ("Intel(R) Xeon(R) Processor", 1, 0.4),
        )
    ]  # fmt: skip
    assert page.training(runs, ["cpu"]).splitlines()[2:] == [
        "| AMD EPYC | 200 | R³L | 0.150 | 0.500 (0.500, 0.500) | 0.500 (0.500, 0.500) | 4 | 1, 2 |",
        "| Intel Xeon | 200 | R³L | 0.400 | 0.500 | 0.500 | 4 | 1 |",
    ]


def test_a_pair_is_compared_over_the_evaluations_that_both_runs_have() -> None:
    def run(variant: str, seed: int, *successes: float) -> dict[str, Any]:
        made = {"machine": "M", "dose": 200, "variant": variant, "seed": seed}
        evaluations = [[5 * n, success] for n, success in enumerate(successes)]
        return made | {"means": {"group/guidance_gain": 0.3}, "evaluations": evaluations}

    runs = [
        run("r3l", 1, 0.1, 0.3), run("no_reflect", 1, 0.2, 0.2, 0.9),
        run("r3l", 2, 0.1, 0.5), run("no_reflect", 2, 0.1, 0.3),
        run("r3l", 3, 0.1, 0.9),
    ]  # fmt: skip
    assert page.pairs(runs).splitlines()[2:] == [
        "| 200 | M | 1 | +0.30 | 0.100 → 0.300 | 0.200 → 0.200 | +0.100 |",
        "| 200 | M | 2 | +0.30 | 0.100 → 0.500 | 0.100 → 0.300 | +0.200 |",
        "| **200** | all | 2 warm policies |  |  |  | 0.150 (0.100, 0.200) |",
    ]


def test_seeds_that_begin_from_one_warm_policy_count_once_over_warm_policies() -> None:
    runs = []
    for machine, seed, apart in (("NVIDIA X", 1, 0.1), ("NVIDIA X", 2, 0.3), ("AMD EPYC", 2, 0.4)):
        for variant, success in (("r3l", 0.2 + apart), ("no_reflect", 0.2)):
            made = {"machine": machine, "dose": 1000, "variant": variant, "seed": seed}
            runs.append(made | {"means": {}, "evaluations": [[0, 0.1], [5, success]]})
    *_, policies = page.pairs(runs).splitlines()
    assert "2 warm policies" in policies and " 0.300 " in policies  # (0.2 + 0.4) / 2
    first = {"machine": "AMD EPYC", "dose": 200}
    policies_of = [page.policy_of(first | {"seed": seed}) for seed in (1, 2, 4)]
    assert policies_of[0] == policies_of[1] != policies_of[2]


def test_a_demonstrated_conversation_calls_the_tool_and_repeats_its_result() -> None:
    system, asked, call, result, answer = json.loads(next(calculator.conversations()))["messages"]
    assert "multiply" in system["content"] and asked["content"] == "What is 12 times 3?"
    assert '"a": 12' in call["content"] and "36" in result["content"] and answer["content"] == "36"


@pytest.mark.parametrize("variant", training.VARIANTS)
def test_the_settings_of_a_variant_are_accepted(variant: str) -> None:
    from r3l.run import config as configuration

    assert configuration.load(doses.SETTINGS, list(training.VARIANTS[variant])).algorithm

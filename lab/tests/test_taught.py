"""The environment's reflections instead of the policy's, with advice of every worth."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envs.registry import task_source
from lab.results import taught
from lab.results.taught import Guidance
from learner.warmup import lessons
from r3l.records import Task
from r3l.rollout.policy_interface import Policy, SampleParams

(TASK,) = task_source("workshop").tasks("train", 1)


def reflection(guidance: Guidance, actions: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is answered to a request for a reflection on an attempt."""
    log = "\n".join(f"step {number} does: {action}" for number, action in enumerate(actions))
    policy = cast(Policy, SimpleNamespace(chat=SimpleNamespace(text=lambda _: log)))
    monkeypatch.setattr(taught, "reply", lambda _, text: json.loads(text))
    made = taught.taught(policy, TASK, lambda: lessons.demonstrating("workshop"), guidance)
    return asyncio.run(made.sample([], SampleParams(10, json_schema={})))


def failed(task: Task) -> tuple[list[str], str]:
    """The actions of an attempt whose first step alone is wrong, and the tool it needed."""
    env = lessons.demonstrating("workshop")
    env.reset(seed=task.seed, options=task.options)
    needed, *others = env.demonstration()
    wrong = next(f"use {tool}" for tool in env.answers if f"use {tool}" != needed)
    return [wrong, *others], needed.removeprefix("use ")


@pytest.mark.parametrize("guidance", ["useless", "harmful"])
def test_bad_guidance_differs_in_its_advice_alone(
    guidance: Guidance, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions, needed = failed(TASK)
    useful = reflection("useful", actions, monkeypatch)
    bad = reflection(guidance, actions, monkeypatch)
    assert f"needs {needed}" in useful.pop("improvement_suggestion")
    advice = bad.pop("improvement_suggestion")
    assert bad == useful and bad["retry_from_step"] == 0
    assert needed not in advice and ("needs" in advice) == (guidance == "harmful")


def test_another_tasks_advice_is_what_that_task_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    actions, needed = failed(TASK)
    useful = reflection("useful", actions, monkeypatch)
    other = reflection("another", actions, monkeypatch)
    env = lessons.demonstrating("workshop")
    env.reset(seed=TASK.seed + 1, options=TASK.options)
    for action in actions:
        env.step(action)
    assert other.pop("improvement_suggestion") == env.reflection()["improvement_suggestion"]
    assert f"needs {needed}" in useful.pop("improvement_suggestion") and other == useful


def test_the_demonstrator_plays_an_attempt_without_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(taught, "reply", lambda _, text: text)
    policy = cast(Policy, SimpleNamespace(chat=None))
    env = lessons.demonstrating("workshop")
    made = taught.taught(policy, TASK, lambda: lessons.demonstrating("workshop"), "demonstrated")
    env.reset(seed=TASK.seed, options=TASK.options)
    wanted = env.demonstration()
    said = [asyncio.run(made.sample([], SampleParams(10))) for _ in wanted]
    assert said == wanted


def test_a_success_gets_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lessons.demonstrating("workshop")
    env.reset(seed=TASK.seed, options=TASK.options)
    said = reflection("harmful", env.demonstration(), monkeypatch)
    assert said["improvement_suggestion"] is None and said["trajectory_outcome"] == "success"


def test_without_a_teacher_the_policy_reflects() -> None:
    policy = cast(Policy, SimpleNamespace(chat=None))
    assert taught.taught(policy, TASK, lambda: lessons.demonstrating("workshop"), "") is policy

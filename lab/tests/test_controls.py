"""The two controls whose teacher answers in the policy's place."""

import asyncio
import json

import pytest

from envs import exploring
from lab.real_model import controls, training
from lab.real_model.controls import AnothersAdvice, Supervised
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.rehearsal.rehearse import rehearse
from r3l.records import Group
from r3l.rollout.exploration import Decoding
from r3l.run import config as configuration
from tests.r3l.fakes import ScriptedPolicy


def explored(algorithm: Algorithm, text: str = "use brush") -> Group:
    (task,) = exploring.tasks("workshop", 1)
    decoding = Decoding(max_reflection_tokens=999)
    policy = ScriptedPolicy(lambda prompt: text)  # whose own reflections could not be read
    policy.version = 3
    return asyncio.run(exploring.explore(algorithm, task, policy, "workshop", decoding=decoding))


def test_a_supervised_attempt_is_right_and_as_new_as_the_weights() -> None:
    group = explored(Supervised(group_size=1))
    [attempt] = group.trajectories
    assert attempt.reward == 1.0 and all(action.startswith("use ") for action in attempt.actions)
    assert set(attempt.step_versions) == set(attempt.step_newest_versions) == {3}


def test_another_tasks_advice_is_shown_to_retries_of_the_policys_own_attempts() -> None:
    group = explored(AnothersAdvice(group_size=2, guidance_text="advice"))
    [thought] = group.reflections
    written = json.loads(thought.text)
    assert written["trajectory_outcome"] == "failure" and thought.version == 3
    base, retry = group.trajectories
    assert base.reward == 0.0 and retry.of == 0 and retry.pivot == written["retry_from_step"]
    (task,) = exploring.tasks("workshop", 1)
    teacher = controls.demonstrating("workshop")
    teacher.reset(seed=task.seed + 1)
    for action in base.actions:
        teacher.step(action)
    assert written["improvement_suggestion"] == teacher.reflection()["improvement_suggestion"]


@pytest.mark.parametrize("variant", training.OF_THE_WORKSHOP)
def test_a_control_survives_the_rehearsal_of_a_run(variant: str) -> None:
    rehearse(configuration.load(None, [*training.VARIANTS[variant]]).algorithm)

"""The built-in worlds: replay, reward, remarks, and what their demonstrators and teachers say."""

import json
import random

import pytest

from envs import registry
from envs.base import ORACLE, Demonstrating, Skill
from envs.builtin.policy import BUILTIN_WORLDS
from r3l.rollout import reflection
from r3l.rollout.interfaces import Environment

WORLDS = BUILTIN_WORLDS
CARELESS = Skill(withheld=4, mistakes=0.2, waste=0.2)


def play(env, seed, skill, rng=None, advice=""):
    """Actions, observations (one more) and total reward of a demonstrated attempt."""
    rng = rng or random.Random(seed)
    observations, actions, total, ended = [env.reset(seed=seed)[0]], [], 0.0, False
    while not ended:
        actions.append(env.demonstrate(skill, rng, advice))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        total, ended = total + reward, terminated or truncated
    return actions, observations, total


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_offers_snapshots_and_demonstrations(name):
    env = registry.make(name)
    assert isinstance(env, Environment)
    assert isinstance(env, Demonstrating)
    assert env.spec.name == name and env.spec.deterministic == "exact"


@pytest.mark.parametrize("name", WORLDS)
def test_the_same_seed_and_actions_give_the_same_lines(name):
    first, second = registry.make(name), registry.make(name)
    for seed in range(100):
        actions, observations, _ = play(first, seed, CARELESS)
        again = [second.reset(seed=seed)[0]]
        again += [second.step(action)[0] for action in actions]
        assert again == observations
        assert second.feedback() == first.feedback()


@pytest.mark.parametrize("name", WORLDS)
def test_a_snapshot_taken_anywhere_continues_as_the_original_did(name):
    env, other = registry.make(name), registry.make(name)
    for seed in range(30):
        actions, _, _ = play(env, seed, CARELESS)
        for cut in range(len(actions)):
            env.reset(seed=seed)
            for action in actions[:cut]:
                env.step(action)
            state = env.snapshot()
            assert isinstance(state, bytes)
            other.restore(state)
            assert [other.step(a) for a in actions[cut:]] == [env.step(a) for a in actions[cut:]]
            assert other.reflection() == env.reflection()


@pytest.mark.parametrize("name", WORLDS)
def test_the_oracle_always_succeeds_and_is_paid_once_at_the_end(name):
    env = registry.make(name)
    for seed in range(200):
        _, _, reward = play(env, seed, ORACLE)
        assert reward == 1.0
        assert env.reflection()["trajectory_outcome"] == "success"
        assert env.reflection()["retry_from_step"] is None


@pytest.mark.parametrize("name", WORLDS)
def test_withheld_rules_leave_room_to_learn(name):
    env, rng = registry.make(name), random.Random(0)
    rate = sum(play(env, seed, Skill(withheld=4), rng)[2] for seed in range(1000)) / 1000
    assert 0.1 < rate < 0.6


@pytest.mark.parametrize("name", WORLDS)
def test_a_teachers_reflection_parses_and_a_demonstrator_that_heeds_it_succeeds_more(name):
    env, rng = registry.make(name), random.Random(0)
    skill, guided, restarted, failures = Skill(withheld=4), 0.0, 0.0, 0
    for seed in range(300):
        actions, _, reward = play(env, seed, skill, rng)
        thought = env.reflection()
        parsed = reflection.parse(json.dumps(thought), len(actions))
        assert parsed.triggers_retry(len(actions)) == (parsed.trajectory_outcome != "success")
        if reward < 1.0:
            failures += 1
            guided += play(env, seed, skill, rng, parsed.improvement_suggestion)[2]
            restarted += play(env, seed, skill, rng)[2]
    assert guided / failures > 2 * restarted / failures


def test_the_note_overrules_the_world():
    env = registry.make("workshop", exceptions=5)
    first, _ = env.reset(seed=1)
    assert first.startswith("note: ")
    for thing, need in zip(env.state.row, env.state.needs, strict=True):
        assert need != env.rule[thing]
        assert f"{thing} needs {need}" in first


@pytest.mark.parametrize(
    "action", ["", "dance", "use", "use spoon", "look now", "\x00🔥", "use " * 99]
)
def test_an_action_that_is_not_understood_is_answered_in_words_and_counts(action):
    env = registry.make("workshop", steps=6)
    env.reset(seed=0)
    line, reward, terminated, truncated, _ = env.step(action)
    assert "is not understood" in line and "station 0" in line
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.reflection()["retry_from_step"] == 0


def test_a_wasted_step_leaves_success_but_inefficient():
    env = registry.make("workshop")
    env.reset(seed=0)
    env.step(f"use {env.state.needs[0]}")
    env.step("look")
    last = [env.step(f"use {tool}") for tool in env.state.needs[1:]][-1]
    assert last[1] == 1.0
    thought = env.reflection()
    assert thought["trajectory_outcome"] == "success_but_inefficient"
    assert thought["retry_from_step"] == 1


def test_running_out_of_steps_is_a_failure_that_began_with_the_first_wasted_step():
    env = registry.make("workshop", stations=2, steps=2)
    env.reset(seed=0)
    env.step("look")
    line, reward, terminated, truncated, _ = env.step(f"use {env.state.needs[0]}")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert "over" in line
    assert env.reflection()["trajectory_outcome"] == "failure"
    assert env.reflection()["retry_from_step"] == 0

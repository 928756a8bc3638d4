"""The demonstrator and the teacher on the real world."""

import json
import random

import pytest

from envs.adapters.scienceworld.science_tasks import named
from envs.base import Skill
from lab.scienceworld import demonstrator
from r3l.rollout import reflection

TASKS = named(["find-*", "lifespan-*"])


def play(env, skill, seed, actions=(), task=None, variation=0):
    """(reward, observations, actions) of an attempt that begins with `actions`."""
    options = {"task": task, "variation": variation} if task else None
    rng, said, done, reward = random.Random(seed), [], [], 0.0
    said.append(env.reset(seed=seed, options=options)[0])
    ended = False
    while not ended:
        todo = actions[len(done)] if len(done) < len(actions) else env.demonstrate(skill, rng)
        observation, gain, terminated, truncated, _ = env.step(todo)
        said.append(observation)
        done.append(todo)
        reward, ended = reward + gain, terminated or truncated
    return reward, said, done


@pytest.mark.parametrize("task", TASKS)
def test_the_oracle_reaches_the_full_score_in_plain_words(small, task):
    reward, said, done = play(small, Skill(), 0, task=task, variation=150 if "find" in task else 0)
    assert reward == pytest.approx(1.0)
    assert not any("No known action" in text for text in said)
    assert not any(action.startswith("open door") for action in done)
    thought = small.reflection()
    assert thought["trajectory_outcome"] == "success" and thought["retry_from_step"] is None


@pytest.mark.parametrize(("task", "variation"), [("boil", 0), ("use-thermometer", 3)])
def test_the_oracle_reaches_the_full_score_of_other_tasks(env, task, variation):
    assert play(env, Skill(), 0, task=task, variation=variation)[0] == pytest.approx(1.0)


def test_a_demonstrator_that_errs_still_finds_its_way(small):
    erring = Skill(mistakes=0.1, waste=0.1)
    rewards = [play(small, erring, seed)[0] for seed in range(12)]
    assert sum(reward > 0.99 for reward in rewards) >= 6
    assert play(small, erring, 3) == play(small, erring, 3)


@pytest.mark.parametrize(
    ("skill", "advice", "guesses"),
    [
        (Skill(withheld=len(TASKS) - 3), "", False),  # lifespan tasks are the last three
        (Skill(withheld=len(TASKS)), "", True),
        (Skill(withheld=len(TASKS)), "focus on baby brown bear", False),
        (Skill(withheld=len(TASKS), certainty=1.0), "", False),
    ],
)
def test_a_withheld_task_is_guessed_unless_advice_or_certainty_tells(small, skill, advice, guesses):
    small.reset(seed=0, options={"task": "lifespan-longest-lived", "variation": 0})
    for action in ("go to greenhouse", "go to outside", "look around"):
        small.step(action)
    said = {small.demonstrate(skill, random.Random(n), advice) for n in range(30)}
    assert "focus on baby brown bear" in said and (len(said) > 3) == guesses, said


def test_the_pivot_is_the_wrong_focus(small):
    first = ["go to kitchen", "go to outside", "look around", "focus on axe"]
    reward, _, done = play(small, Skill(), 0, first, "find-animal", 0)
    thought = small.reflection()
    assert reward == 0.0 and done == first
    assert thought == {
        "trajectory_summary": "4 steps, score 0",
        "root_cause_analysis": "step 3 was focus on axe",
        "trajectory_outcome": "failure",
        "improvement_suggestion": "focus on butterfly egg",
        "retry_from_step": 3,
    }
    assert reflection.parse(json.dumps(thought), 4).triggers_retry(4)


def test_a_detour_makes_a_success_inefficient(small):
    first = ["go to bedroom"]
    reward, *_ = play(small, Skill(), 0, first, "find-non-living-thing", 0)
    thought = small.reflection()
    assert reward == pytest.approx(1.0)
    assert thought["trajectory_outcome"] == "success_but_inefficient"
    assert (thought["retry_from_step"], thought["improvement_suggestion"]) == (0, "go to kitchen")


def test_an_attempt_out_of_steps_is_retried_from_the_first_useless_one(small):
    first = ["go to kitchen", *["wait1"] * 13]
    reward, *_ = play(small, Skill(), 0, first, "find-non-living-thing", 0)
    thought = small.reflection()
    assert 0 < reward < 1 and thought["trajectory_outcome"] == "failure"
    assert thought["retry_from_step"] == 1


def test_the_search_finds_the_first_step_after_which_gold_fails(small):
    """A box cannot be moved into itself, but the attempt continues."""
    first = ["go to kitchen", "go to hallway", "go to workshop", "look around", "focus on blue box"]
    first += ["inventory", "wait1"]
    play(small, Skill(), 0, first, "find-non-living-thing", 176)
    histories = [small.history[:end] for end in (3, *small.ends)]
    reached = [
        demonstrator.reaches_full_score(small.simulator, small.guide(), history)
        for history in histories
    ]
    assert reached == sorted(reached, reverse=True) and True in reached and False in reached
    assert small.reflection()["retry_from_step"] == reached.index(False) - 1 == 4


def test_a_response_without_an_action_is_named(small):
    play(small, Skill(), 0, ["\n\n"], "lifespan-longest-lived", 0)
    assert small.reflection()["root_cause_analysis"] == "step 0 was no action"

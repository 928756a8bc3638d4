"""ScienceWorld on its real Java machine. R3L_FULL=1 plays all 30 gold paths and 60 prefixes."""

import os
import random
import shutil

import pytest

from envs import registry
from envs.testing import check_env
from r3l.errors import UserError

pytest.importorskip("scienceworld", reason="pip install 'r3l[scienceworld]'")
if shutil.which("java") is None:
    pytest.skip("no Java: apt-get install default-jre-headless", allow_module_level=True)

from envs.adapters.scienceworld_tasks import LIMITS, SPLITS

FULL = bool(os.environ.get("R3L_FULL"))


@pytest.fixture(scope="module")
def env():
    env = registry.make("scienceworld", timeout_s=300)
    yield env
    env.close()


def start(env, task, variation=0):
    return env.reset(seed=0, options={"task": task, "variation": variation})[0]


def test_the_environment_conforms():
    check_env("scienceworld", seeds=(0,), options={"tasks": ["find-plant"]}, max_steps=10)


@pytest.mark.parametrize("task", SPLITS if FULL else ["find-animal"])
def test_the_gold_path_reaches_the_full_score(env, task):
    start(env, task)
    path = env.demonstration()
    env.steps = -1000  # whatever the step limit
    replies = []
    for action in path:
        replies.append(env.step(action))
        if replies[-1][2]:
            break
    assert sum(reply[1] for reply in replies) == pytest.approx(1.0) and replies[-1][2]
    assert env.feedback() == "The score is 100 of 100."


@pytest.mark.parametrize("number", range(60 if FULL else 2))
def test_a_random_prefix_replays_byte_exact(env, number):
    rng = random.Random(number)
    task = rng.choice(list(SPLITS))
    variation = rng.randrange(SPLITS[task].train)
    seen, actions = [start(env, task, variation)], []
    for _ in range(20):
        possible = env._call(lambda server: list(server.getValidActionObjectCombinations()))
        actions.append(rng.choice(possible) if possible and rng.random() < 0.9 else "0")
        observation, reward, done, *_ = env.step(actions[-1])
        seen.append((observation, reward, done))
        if done:
            break
    again = [start(env, task, variation)]
    again += [env.step(action)[:3] for action in actions]
    assert again == seen


def test_the_variations_are_those_of_the_jar(env):
    for task in SPLITS if FULL else ["boil", "use-thermometer"]:
        start(env, task)
        sizes = env._call(
            lambda server: [
                list(variations)
                for variations in (
                    server.getVariationsTrain(),
                    server.getVariationsDev(),
                    server.getVariationsTest(),
                )
            ]
        )
        assert tuple(map(len, sizes)) == SPLITS[task]
        assert [n for split in sizes for n in split] == list(range(sum(SPLITS[task])))
    assert len(SPLITS) == 30 and sum(map(sum, SPLITS.values())) == 7207


def test_a_wrong_focus_ends_the_attempt_with_nothing(env):
    start(env, "find-plant")
    env.step("look around")
    text, _, terminated, *_ = env.step("focus on air")
    if not terminated:  # several things of that name: take the first
        text, _, terminated, *_ = env.step("0")
    assert terminated and env.feedback() == "The score is 0 of 100.", text


def test_starting_over_is_not_an_action(env):
    start(env, "find-plant")
    assert env.step("reset task")[0] == "That is not allowed."


def test_tasks_are_official_variations():
    held = registry.tasks("scienceworld", {}, "eval", 10_000)
    assert len(held) == sum(s.test for s in SPLITS.values())
    assert len({task.options["task"] for task in held[:200]}) > 15
    assert all(task.options["family"] == task.options["task"] for task in held)
    train = registry.tasks("scienceworld", {"tasks": ["boil"]}, "train", 99)
    assert {task.task_id for task in train} == {f"scienceworld/boil/{n}" for n in range(14)}
    assert max(LIMITS.values()) >= registry.make("scienceworld").spec.max_steps
    with pytest.raises(UserError, match="'boyle' is unknown; there are boil"):
        registry.make("scienceworld", tasks=["boyle"])

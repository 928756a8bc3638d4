"""ScienceWorld on its real Java machine. R3L_FULL=1 plays all 30 gold paths and 60 prefixes."""

import gc
import os
import random

import pytest

from envs import registry
from envs.adapters.scienceworld import simulator
from envs.adapters.scienceworld.science_tasks import LIMITS, SPLITS
from envs.testing import check_env
from r3l.errors import UserError

pytestmark = pytest.mark.usefixtures("java")
FULL = bool(os.environ.get("R3L_FULL"))


def start(env, task, variation=0):
    """The first observation."""
    return env.reset(seed=0, options={"task": task, "variation": variation})[0]


def test_the_environment_conforms():
    check_env("scienceworld", seeds=(0,), options={"tasks": ["find-plant"]}, max_steps=10)


def test_brief_texts_conform():
    options = {"tasks": ["find-*", "lifespan-*"], "brief": True}
    check_env("scienceworld", seeds=(0, 90117), options=options)


@pytest.mark.skipif(not FULL, reason="R3L_FULL=1 (its gold path takes half a minute)")
def test_a_gold_path_that_goes_on_after_the_end_conforms():
    options = {"tasks": ["mendelian-genetics-unknown-plant"], "timeout_s": 300}
    check_env("scienceworld", seeds=(1,), options=options, max_steps=3)


@pytest.mark.parametrize("variation", [0, 40])
def test_a_demonstration_ends_where_the_attempt_ends(env, variation):
    start(env, "lifespan-longest-lived", variation)
    actions = env.demonstration()
    assert "wait1" not in actions  # upstream's gold path waits after the end
    ends = [env.step(action)[2] for action in actions]
    assert ends == [False] * (len(actions) - 1) + [True]
    assert env.step("wait1") == ("The task has ended.", 0.0, True, False, {})


def test_a_snapshot_continues_in_another_environment(env, small):
    start(small, "find-plant", 40)
    small.step("go to hallway")
    small.step("zzz\nzzz")
    state = small.snapshot()
    went_on = [small.step(action) for action in ("look around", "go to greenhouse")]
    other = registry.make("scienceworld", brief=True, timeout_s=300)
    other.restore(state)
    assert [other.step(action) for action in ("look around", "go to greenhouse")] == went_on
    assert len(other.ends) == 4
    other.close()


@pytest.mark.parametrize("task", SPLITS if FULL else ["find-animal"])
def test_the_gold_path_reaches_the_full_score(env, task):
    start(env, task)
    path = env.demonstration()
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
    variation = rng.randrange(SPLITS[task][0])
    seen, actions = [start(env, task, variation)], []
    for _ in range(20):
        env.simulator.turn(env.history)
        possible = env.simulator.call(lambda s: list(s.getValidActionObjectCombinations()))
        actions.append(rng.choice(possible) if possible and rng.random() < 0.9 else "0")
        observation, reward, done, *_ = env.step(actions[-1])
        seen.append((observation, reward, done))
        if done:
            break
    known = dict(simulator._known)
    simulator._known.clear()  # so that Java plays it again
    env.simulator.live = ()
    again = [start(env, task, variation)]
    again += [env.step(action)[:3] for action in actions]
    assert again == seen
    simulator._known.update(known)


def test_the_variations_are_those_of_the_jar(env):
    for task in SPLITS if FULL else ["boil", "use-thermometer"]:
        env.simulator.load((task, "0", "easy"))
        sizes = env.simulator.call(
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


def test_an_attempt_does_not_begin_with_the_score_of_the_one_before(env):
    start(env, "lifespan-longest-lived")
    assert env.step("focus on air")[2]
    start(env, "lifespan-longest-lived")
    assert env.step("task")[1:3] == (0.0, False)  # an action that takes no time


def test_starting_over_is_not_an_action(env):
    start(env, "find-plant")
    assert env.step("reset task")[0] == "That is not allowed."


def test_tasks_are_official_variations():
    held = registry.tasks("scienceworld", {}, "eval", 10_000)
    assert len(held) == sum(test for _, _, test in SPLITS.values())
    assert len({task.options["task"] for task in held[:200]}) > 15
    assert all(task.options["family"] == task.options["task"] for task in held)
    train = registry.tasks("scienceworld", {"tasks": ["boil"]}, "train", 99)
    assert {task.task_id for task in train} == {f"scienceworld/boil/{n}" for n in range(14)}
    assert max(LIMITS.values()) >= registry.make("scienceworld").spec.max_steps
    with pytest.raises(UserError, match=r"'boyle' is unknown.* boil"):
        registry.make("scienceworld", tasks=["boyle"])


def test_tasks_that_were_played_take_no_memory_of_java(java):
    env = registry.make("scienceworld", heap_mib=128, timeout_s=300)
    gc.disable()  # as in an actor, where it runs once in hundreds of tasks
    try:
        for variation in range(24):  # 12 MiB each
            start(env, "find-plant", variation)
    finally:
        gc.enable()
        env.close()

"""TextWorld: generated games of every kind, real interpreter."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from envs import registry
from envs.adapters.textworld import KINDS
from envs.base import Skill
from envs.demonstrations import demonstrating
from envs.exploring import explore
from envs.isolation.pool import environments
from envs.testing import check_env
from r3l.algorithms.r3l import R3L
from r3l.errors import UserError
from r3l.run.settings.environment import EnvConfig
from tests.r3l.fakes import ScriptedPolicy

textworld = pytest.importorskip("textworld", reason="pip install 'r3l[textworld]'")
SMALL = {"rooms": 2, "objects": 3, "quest": 2}
EASY = {
    "coin_collector": {"level": 103},
    "treasure_hunter": {"level": 3},
    "cooking": {"cook": True, "cut": True, "open": True},
    "simple": {"max_steps": 60},
    "custom": SMALL,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("games"))


@pytest.fixture
def env(cache):
    env = registry.make("textworld:custom", cache=cache, **SMALL)
    yield env
    env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_games_of_every_kind_conform(kind, cache):
    options = {"cache": cache, "admissible": kind == "custom", **EASY[kind]}
    check_env(f"textworld:{kind}", seeds=(0, 1), options=options, max_steps=10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_demonstrator_wins_and_its_rewards_sum_to_one(kind, cache):
    env = demonstrating(f"textworld:{kind}", cache=cache, games=1, **EASY[kind])
    env.reset(seed=0)
    env.step("look")  # a detour
    total, ended, rng = 0.0, False, random.Random(0)
    while not ended:
        text, reward, terminated, truncated, _ = env.step(env.demonstrate(Skill(), rng))
        total, ended = total + reward, terminated or truncated
    assert total == pytest.approx(1.0) and env.env.state.won
    assert "The game was won." in text and "***" not in text and "QUIT" not in text
    assert env.reflection()["retry_from_step"] == 0
    env.close()


def test_the_first_text_tells_the_way_unless_only_the_last_action_is_asked_for(cache):
    first = {}
    for only in (False, True):
        options = {"cache": cache, "level": 3, "only_last_action": only}
        env = registry.make("textworld:coin_collector", **options)
        first[only] = env.reset(seed=0)[0].partition("-=")[0]
        directions = [action.split()[1] for action in env.demonstration()[:-1]]
        env.close()
    assert all(direction in first[False] for direction in directions)
    assert not any(direction in first[True] for direction in directions)
    assert "coin" in first[True]


def test_the_game_speaks_without_banner_and_status_line(env):
    first, info = env.reset(seed=1)
    assert "$$" not in first and "TextWorld" in first and "look" in info["admissible"]
    for text in (first, env.step("look")[0], env.step("fly away")[0], env.step("inventory")[0]):
        assert text == text.strip() and not text.endswith(">") and "0/" not in text


@pytest.mark.parametrize(
    "command",
    ["save", "Quit", "restart", "restore", "undo", "script", "look. save", "look then quit", "q"],
)
def test_commands_to_the_interpreter_do_not_reach_it(env, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env.reset(seed=1)
    text, reward, terminated, truncated, _ = env.step(command)
    assert "is not part of the game" in text
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "-=" in env.step("look")[0]
    assert list(Path(tmp_path).iterdir()) == []


def test_winning_pays_one_and_names_it(env):
    env.reset(seed=2)
    actions = env.demonstration()
    rewards = [env.step(f"I will. <action>{action}</action>") for action in actions]
    assert sum(reply[1] for reply in rewards) == 1.0 and rewards[-1][2]
    assert env.feedback() == "The game was won. 1 of 1 points."


def test_the_possible_commands_are_shown_if_that_is_asked_for(cache):
    env = registry.make("textworld:custom", cache=cache, admissible=True, **SMALL)
    first, info = env.reset(seed=1)
    assert first.endswith(f"\nPossible now: {', '.join(info['admissible'])}.")
    assert env.step("look")[0].count("Possible now: ") == 1
    env.close()


def test_a_game_is_made_once_and_then_read(env, cache):
    env.reset(seed=3)
    made = {path: path.stat().st_mtime_ns for path in Path(cache).rglob("3.z8")}
    other = registry.make("textworld:custom", cache=cache, **SMALL)
    other.reset(seed=3)
    other.close()
    assert made == {path: path.stat().st_mtime_ns for path in Path(cache).rglob("3.z8")}


def test_the_number_of_games_limits_each_split_and_no_two_splits_share_one():
    source = registry.task_source("textworld:cooking", games=3)
    drawn = [source.tasks(split, 10) for split in ("warmup", "train", "eval")]
    assert [len(tasks) for tasks in drawn] == [3, 3, 3]
    assert len({task.seed for tasks in drawn for task in tasks}) == 9
    assert len(registry.task_source("textworld:cooking").tasks("train", 10)) == 10


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("textworld:cookin", {}, r"unknown \(did you mean cooking\?\); it must be one of "),
        ("textworld:custom", {"rooms": 0}, "rooms is 0; it must be an integer in 1..100"),
        ("textworld:coin_collector", {"level": 301}, r"level is 301; .* 1..300"),
        ("textworld:coin_collector", {"recipe": 1}, "recipe: unknown; the settings of .* level"),
        ("textworld:cooking", {"go": 2}, "go is 2; it must be 1 or 6 or 9 or 12"),
        ("textworld:cooking", {"max_steps": 0}, "max_steps is 0"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(name, options, line):
    with pytest.raises(UserError, match=line) as caught:
        registry.make(name, **options)
    assert "\n" not in str(caught.value)


def test_a_retry_goes_back_into_the_game_by_replay_in_a_worker(cache):
    """Every retry starts at step 1: the prefix is replayed and compared, the rest is new."""
    thought = json.dumps(
        {
            "trajectory_summary": "looked around",
            "root_cause_analysis": "nothing was taken",
            "trajectory_outcome": "failure",
            "improvement_suggestion": "look at what you carry",
            "retry_from_step": 1,
        }
    )

    def reply(prompt):
        if "You review one attempt" in prompt:
            return thought
        return "<action>inventory</action>" if "what you carry" in prompt else "look"

    options = {"cache": cache, "max_steps": 3, **SMALL}
    config = EnvConfig(name="textworld:custom", options=options, step_s=300, workers=1)
    [task] = registry.tasks("textworld:custom", options, "train", 1)

    async def explored():
        async with environments(config, 4) as make_env:
            return await explore(R3L(group_size=4), task, ScriptedPolicy(reply), make_env)

    results = asyncio.run(explored()).results
    assert [result.status for result in results] == ["done"] * 4
    base, retry = (
        next(r.trajectory for r in results if r.role == role) for role in ("base", "distilled")
    )
    assert retry.pivot == 1 and retry.actions == ("look", *["<action>inventory</action>"] * 2)
    assert retry.observations[:2] == base.observations[:2]
    assert "carrying" in retry.observations[2]

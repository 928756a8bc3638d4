"""TextWorld: generated games, real interpreter."""

import asyncio
import json
from pathlib import Path

import pytest

from envs import registry
from envs.isolation.pool import environments
from envs.testing import check_env
from r3l.config import load
from r3l.errors import UserError
from r3l.rollout.group import explore_group
from tests.r3l.fakes import ScriptedPolicy

pytest.importorskip("textworld", reason="pip install 'r3l[textworld]'")
SMALL = {"rooms": 2, "objects": 3, "quest": 2}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("games"))


@pytest.fixture
def env(cache):
    env = registry.make("textworld", cache=cache, **SMALL)
    yield env
    env.close()


def test_generated_games_conform(cache):
    check_env("textworld", options={"cache": cache, **SMALL}, max_steps=10)


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


def test_a_game_is_made_once_and_then_read(env, cache):
    env.reset(seed=3)
    made = {path: path.stat().st_mtime_ns for path in Path(cache).rglob("3.z8")}
    other = registry.make("textworld", cache=cache, **SMALL)
    other.reset(seed=3)
    other.close()
    assert made == {path: path.stat().st_mtime_ns for path in Path(cache).rglob("3.z8")}


def test_a_wrong_game_setting_is_refused_in_one_line():
    with pytest.raises(UserError, match="rooms is 0") as caught:
        registry.make("textworld", rooms=0)
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

    settings = load(None, ["algorithm.group_size=4", "env.step_s=300", "env.workers=1"])
    options = {"cache": cache, "max_steps": 3, **SMALL}
    env = settings.env.model_copy(update={"name": "textworld", "options": options})
    task = registry.tasks("textworld", options, "train", 1)[0]

    async def explore():
        async with environments(env, 4) as make_env:
            return await explore_group(task, ScriptedPolicy(reply), make_env, settings)

    results = asyncio.run(explore())
    assert [result.status for result in results] == ["done"] * 4
    base, retry = (next(r.trajectory for r in results if r.role == role) for role in
                   ("base", "distilled"))  # fmt: skip
    assert retry.pivot == 1 and retry.actions == ("look", *["<action>inventory</action>"] * 2)
    assert retry.observations[:2] == base.observations[:2]
    assert "carrying" in retry.observations[2]

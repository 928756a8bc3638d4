"""ALFWorld on real games: those of $ALFWORLD_DATA, or next to the checkout, if there are any."""

import json
import os
from pathlib import Path

import pytest

from envs import registry
from envs.testing import Check
from r3l.errors import UserError

SHARED = Path(__file__).parents[4] / "shared" / "data" / "alfworld"
DATA = Path(os.environ.get("ALFWORLD_DATA", SHARED))  # importing alfworld sets it
pytest.importorskip("alfworld", reason="pip install 'r3l[alfworld]'")
if not DATA.is_dir():
    pytest.skip(f"no ALFWorld data in {DATA}", allow_module_level=True)
FULL = bool(os.environ.get("R3L_FULL"))


def games(split: str = "train", **options):
    return registry.tasks("alfworld", {"data": str(DATA), **options}, split, 10_000)


GAMES = [*games(), *games("eval"), *games("eval", eval_split="valid_seen")]


@pytest.fixture(scope="module")
def env():
    env = registry.make("alfworld", data=str(DATA))
    yield env
    env.close()


@pytest.mark.parametrize("number", range(len(GAMES) if FULL else 1))
def test_a_real_game_conforms(env, number):
    other = registry.make("alfworld", data=str(DATA))
    Check(env, 0, GAMES[number], 6, other).run()
    other.close()


def test_no_two_games_share_an_id():
    assert len({task.task_id for task in GAMES}) == len(GAMES)


def test_the_first_observation_has_the_task_and_the_words_of_this_game(env):
    first, info = env.reset(seed=0, options=games()[0].options)
    assert "Your task is to: " in first and "Welcome" not in first
    commands = first.partition("\nCommands: ")[2]
    verbs = {action.split()[0] for action in info["admissible"]}
    assert all(verb in commands for verb in verbs) and "{" not in commands and "[" not in commands
    assert ("put" in commands) != ("move" in commands)


def test_a_wrong_command_costs_a_step_and_nothing_else(env):
    env.reset(seed=0, options=games()[0].options)
    for action in ("fly to the moon", "", "<action></action>"):
        text, reward, terminated, truncated, _ = env.step(action)
        assert text and (reward, terminated, truncated) == (0.0, False, False)
    assert env.feedback() == "The task is not done."


def test_a_planned_walkthrough_wins(env):
    """The planner, which play never asks, shows that these games can be won through the adapter."""
    import textworld

    task = next(t for t in games() if "pick_and_place_simple" in t.task_id)
    wrappers = [type(env._start(env.root / task.options["game"]))]
    game = textworld.start(
        str(env.root / task.options["game"]),
        textworld.EnvInfos(policy_commands=True),
        wrappers=[wrapper() for wrapper in wrappers],
    )
    plan = list(game.reset().policy_commands)
    env.reset(seed=0, options=task.options)
    replies = [env.step(command) for command in plan]
    assert replies[-1][1:3] == (1.0, True) and env.feedback() == "The task is done."


def test_only_the_games_that_upstream_plays_are_tasks(tmp_path):
    for kind, solvable in [
        ("pick-Apple-1", True),
        ("pick-AppleSliced-1", True),
        ("pick_and_movable-1", True),
        ("pick-Bowl-1", False),
        ("pick-Egg-1", None),
    ]:
        folder = tmp_path / "json_2.1.1" / "train" / kind / "trial_1"
        folder.mkdir(parents=True)
        marked = {} if solvable is None else {"solvable": solvable}
        (folder / "game.tw-pddl").write_text(json.dumps(marked))
    found = registry.tasks("alfworld", {"data": str(tmp_path)}, "train", 9)
    assert [task.task_id for task in found] == ["alfworld/train/pick-Apple-1/trial_1"]
    assert found[0].options["family"] == "pick"
    with pytest.raises(UserError, match="eval split has no"):
        registry.tasks("alfworld", {"data": str(tmp_path)}, "eval", 9)

"""TextArena's one-player games."""

import random

import pytest

from envs import registry
from envs.testing import check_env
from r3l.errors import UserError

pytest.importorskip("textarena", reason="pip install 'r3l[textarena]'")


@pytest.mark.parametrize("env_id", ["Mastermind-v0", "TowerOfHanoi-v0", "Minesweeper-v0"])
def test_games_conform(env_id):
    check_env(f"textarena:{env_id}", seeds=(0, 1))


def test_a_game_has_a_random_stream_of_its_own():
    env = registry.make("textarena:Mastermind-v0")
    random.seed(5)
    expected = random.Random(5).random()
    env.reset(seed=1)
    env.step("[1 2 3 4]")
    assert random.random() == expected


def test_an_observation_says_only_new_things():
    env = registry.make("textarena:Mastermind-v0")
    first, _ = env.reset(seed=1)
    text = env.step("[1 2 3 4]")[0]
    assert "You are playing Mastermind" in first
    assert "peg" in text and "You are playing" not in text


@pytest.mark.parametrize(
    ("env_id", "line"), [("TicTacToe-v0", "not a one-player game"), ("Nothing-v0", "not found")]
)
def test_a_game_that_cannot_be_played_is_refused_in_one_line(env_id, line):
    with pytest.raises(UserError, match=line) as caught:
        registry.make(f"textarena:{env_id}")
    assert "\n" not in str(caught.value)

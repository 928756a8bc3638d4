"""GEM's games (its question sets need the network)."""

import pytest

from envs import registry
from envs.testing import check_env
from r3l.errors import UserError

pytest.importorskip("gem", reason="pip install 'r3l[gem]'")


@pytest.mark.parametrize(
    "env_id",
    [
        "game:GuessTheNumber-v0-easy",
        "game:Mastermind-v0-easy",
        "game:Sokoban-v0-easy",
        "game:Minesweeper-v0-easy",
    ],
)
def test_games_conform(env_id):
    check_env(f"gem:{env_id}", seeds=(0, 1))


def test_an_unknown_environment_is_refused_in_one_line():
    with pytest.raises(UserError, match="gem:game:Nothing-v0") as caught:
        registry.make("gem:game:Nothing-v0")
    assert "\n" not in str(caught.value)

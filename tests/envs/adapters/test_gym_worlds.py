"""Gymnasium's text worlds in words. `test_gym.py` plays the real ones."""

from types import SimpleNamespace

import pytest

from envs.adapters.gym_worlds import WORLDS

LAKE = SimpleNamespace(desc=SimpleNamespace(tolist=lambda: [[b"S", b"F"], [b"H", b"G"]]))
LOCS = [(0, 0), (0, 4), (4, 0), (4, 3)]


@pytest.mark.parametrize(
    ("world", "env", "observation", "text"),
    [
        ("FrozenLake", LAKE, 1, "You are at row 0 column 1.\nS P\nH G"),
        ("Blackjack", None, (14, 10, 0), "Your sum is 14. The dealer shows 10."),
        ("Blackjack", None, (18, 1, 1), "Your sum is 18 with a usable ace. The dealer shows 1."),
    ],
)
def test_an_observation_is_put_into_words(world, env, observation, text):
    assert WORLDS[world].text(env, observation) == text


@pytest.mark.parametrize(
    ("decoded", "text"),
    [
        (
            (2, 1, 0, 3),
            "The taxi is at row 2 column 1. The passenger is at R. The destination is B.",
        ),
        (
            (4, 3, 4, 1),
            "The taxi is at row 4 column 3, at B. The passenger is in the taxi. "
            "The destination is G.",
        ),
    ],
)
def test_a_taxi_says_its_stand_and_where_passenger_and_destination_are(decoded, text):
    env = SimpleNamespace(decode=lambda number: decoded, locs=LOCS)
    assert WORLDS["Taxi"].text(env, 7) == text


def test_a_cliff_is_between_start_and_goal():
    text = WORLDS["CliffWalking"].text(None, 36)
    assert text.splitlines() == [
        "You are at row 3 column 0.",
        *[" ".join("o" * 12)] * 3,
        "P C C C C C C C C C C G",
    ]


def test_every_world_names_its_actions_once():
    for world in WORLDS.values():
        assert len(set(world.actions.split())) == len(world.actions.split()) >= 2

"""The frozen lake: maps with a way, holes, a hidden map, slippery ice."""

import random
from collections import deque

import pytest

from envs import registry
from envs.base import Skill
from envs.builtin.grid_world import DIRECTIONS, beside
from tests.envs.builtin.test_matching import play


def distance(size, holes, start=0):
    """Breadth-first search, written out again."""
    found, queue = {start: 0}, deque([start])
    while queue:
        cell = queue.popleft()
        for way in DIRECTIONS:
            to = beside(cell, way, size)
            if to not in found and to not in holes:
                found[to] = found[cell] + 1
                queue.append(to)
    return found.get(size * size - 1)


@pytest.mark.parametrize("size", [2, 4, 7, 9])
def test_every_seed_has_a_way_that_the_demonstrator_finds_and_none_is_shorter(size):
    most = size * size // 3
    env = registry.make("frozen_lake", size=size, holes=most)
    lakes = set()
    for seed in range(12):
        env.reset(seed=seed)
        lakes.add(env.holes)
        assert len(env.holes) == most and not {0, size * size - 1} & env.holes
        assert len(env.demonstration()) == distance(size, env.holes) <= env.spec.max_steps
    assert len(lakes) > (1 if size == 2 else 8)


def test_the_grid_shows_player_ice_holes_and_goal():
    env = registry.make("frozen_lake", size=3, holes=1)
    env.reset(seed=0)
    env.holes = frozenset({4})
    text = env.step("right")[0]
    assert text == (
        "you go right. you are at row 0 column 1.\nrow 0: F P F\nrow 1: F H F\nrow 2: F F G"
    )


def test_a_hole_ends_the_attempt_and_is_named():
    env = registry.make("frozen_lake", size=2, holes=1)
    env.reset(seed=0)
    into, past = ("right", "down") if env.holes == {1} else ("down", "right")
    text, reward, terminated, truncated, _ = env.step(into)
    row, column = divmod(next(iter(env.holes)), 2)
    assert text == f"you fall into a hole at row {row} column {column}. it is over."
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert env.feedback() == "you fell into a hole."
    thought = env.reflection()
    assert thought["root_cause_analysis"] == f"step 0 was {into} at row 0 column 0"
    assert thought["improvement_suggestion"] == f"at row 0 column 0 go {past}"
    env.reset(seed=0)
    assert env.step("up")[0].startswith("the edge stops you. you are at row 0 column 0.")


def test_a_hidden_map_shows_only_where_the_player_was_and_advice_only_rules_out():
    env = registry.make("frozen_lake", map="hidden", holes=4)
    first, _ = env.reset(seed=0)
    assert first.count("?") == 15 and "H" not in first and "G" not in first
    assert "? is not known" in env.spec.system_prompt
    way = env.demonstration()
    assert env.step(way[0])[0].count("?") == 14
    for seed in range(30):
        play(env, seed, Skill(mistakes=0.9), random.Random(seed))
        advice = env.reflection()["improvement_suggestion"]
        assert advice is None or " not " in advice


def test_slippery_ice_slips_alike_in_every_replay_and_the_best_play_wins_about_as_often_as_known():
    """Gymnasium's map 4x4, whose best play wins 0.74 of long attempts."""
    env = registry.make("frozen_lake", slippery=True, steps=100)
    wins = slips = 0
    for seed in range(60):
        env.reset(seed=seed)
        env.holes = frozenset({5, 7, 11, 12})
        env.start = lambda seed: (0,)
        lines = []
        while not env.state.ended:
            lines.append(env.step(env.demonstrate(Skill(), random.Random(0)))[0])
        wins += env.state.won
        slips += sum(line.startswith("you slip.") for line in lines)
        if env.state.won:
            assert env.reflection()["trajectory_outcome"] == "success"
    assert 0.55 < wins / 60 < 0.9 and slips > 200

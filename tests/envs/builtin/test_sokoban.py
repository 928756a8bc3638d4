"""Sokoban: levels that can be solved, pushes, boxes that are lost, shortest solutions."""

from collections import deque

import pytest

from envs import registry
from envs.builtin import sokoban
from envs.builtin.grid_world import DIRECTIONS
from envs.builtin.sokoban import Level


def shortest(level):
    """Breadth-first search over all boards, written out again: row and column, no bounds."""
    size = level.size

    def free(cell):
        inside = 0 <= cell[0] < size and 0 <= cell[1] < size
        return inside and cell[0] * size + cell[1] not in level.walls

    player, *boxes = (divmod(cell, size) for cell in level.start)
    targets = {divmod(cell, size) for cell in level.targets}
    first = (player, frozenset(boxes))
    found, queue = {first: 0}, deque([first])
    while queue:
        (row, column), boxes = queue.popleft()
        steps = found[(row, column), boxes]
        if boxes <= targets:
            return steps
        for down, right in DIRECTIONS.values():
            to, behind = (row + down, column + right), (row + 2 * down, column + 2 * right)
            if not free(to) or (to in boxes and (not free(behind) or behind in boxes)):
                continue
            board = (to, boxes - {to} | {behind} if to in boxes else boxes)
            if board not in found:
                found[board] = steps + 1
                queue.append(board)
    return None


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        ({}, 30),
        ({"size": 5, "walls": 4, "shortest": 8}, 10),
        ({"boxes": 2, "longest": 16}, 10),
        ({"boxes": 3, "longest": 20}, 3),
    ],
)
def test_every_level_can_be_solved_and_the_demonstrator_needs_the_fewest_steps(options, seeds):
    env = registry.make("sokoban", **options)
    levels = set()
    for seed in range(seeds):
        env.reset(seed=seed)
        levels.add(env.level)
        needed = shortest(env.level)
        assert options.get("shortest", 4) <= needed <= options.get("longest", 12)
        assert len(env.demonstration()) == needed
    assert len(levels) > 0.9 * seeds


LEVEL = Level(4, frozenset({15}), frozenset({2}), (4, 5))
"""P B on row 1, the target on row 0 at column 2, a wall in the corner."""


@pytest.fixture
def env():
    env = registry.make("sokoban")
    env.reset(seed=0)
    env.level, env.state.board = LEVEL, LEVEL.start
    return env


def test_a_box_is_pushed_and_the_level_is_won(env):
    text = env.step("right")[0]
    assert text == (
        "you push a box right. you are at row 1 column 1.\n"
        "row 0: F F T F\nrow 1: F P B F\nrow 2: F F F F\nrow 3: F F F W"
    )
    assert env.step("down")[0].startswith("you go down.")
    env.step("right")
    text, reward, terminated, truncated, _ = env.step("up")
    assert (text, reward, terminated, truncated) == (
        "all boxes are on targets. it is over.", 1.0, True, False,
    )  # fmt: skip
    assert env.feedback() == "1 of 1 on targets."


def test_what_is_in_the_way_is_said(env):
    assert env.step("left")[0].startswith("a wall stops you.")
    env.level = Level(4, frozenset({6}), frozenset({1}), LEVEL.start)
    assert env.step("right")[0].startswith("the box does not move.")
    env.level, env.state.board = Level(4, frozenset({8}), frozenset({1}), LEVEL.start), (4, 5)
    assert env.step("down")[0].startswith("a wall stops you.")
    env.state.board = (4, 5, 6)
    assert env.step("right")[0].startswith("the box does not move.")


def test_a_box_that_can_never_get_to_a_target_ends_the_attempt(env):
    env.step("right")
    text, reward, terminated, truncated, _ = env.step("right")
    assert text == "the box can never get to a target now. it is over."
    assert (reward, terminated, truncated) == (0.0, True, False)
    thought = env.reflection()
    assert thought["retry_from_step"] == 1
    assert thought["root_cause_analysis"] == "step 1 was right at row 1 column 1"
    assert thought["improvement_suggestion"] == "at row 1 column 1 go down"
    assert thought["trajectory_summary"] == "2 steps, 0 of 1 on targets"


def test_boxes_that_block_each_other_are_found_lost_by_the_search_alone():
    """Two boxes side by side at the edge: each alone could go along it to a target."""
    level = Level(4, frozenset(), frozenset({0, 3}), (5, 1, 2))
    assert sokoban._pushes(level).keys() >= {1, 2}
    assert sokoban._distance(level, level.start, 30) is None is shortest(level)


def test_signs_of_all_cells(env):
    env.level = Level(4, frozenset({0}), frozenset({1, 2, 3}), (1, 2, 4))
    env.state.board = env.level.start
    assert [env.symbol(cell) for cell in range(6)] == ["W", "S", "D", "T", "B", "F"]


def test_pushes_to_a_target_are_counted_without_the_other_boxes():
    """A row of four cells between walls: a box in its middle, the target at its right end."""
    level = Level(4, frozenset(range(4, 16)), frozenset({3}), (0, 1))
    assert sokoban._pushes(level) == {3: 0, 2: 1, 1: 2}


def test_a_search_that_needs_too_many_boards_gives_up(monkeypatch):
    level = sokoban._level(3, 4, 1, 1, 4, 12)
    needed = sokoban._distance(level, level.start, 12)
    sokoban._distance.cache_clear()
    monkeypatch.setattr(sokoban, "MOST_STATES", 2)
    assert needed and sokoban._distance(level, level.start, 12) is None
    sokoban._distance.cache_clear()


def test_if_no_level_is_long_enough_the_longest_one_is_taken(monkeypatch):
    monkeypatch.setattr(sokoban, "TRIES", 1)
    sokoban._level.cache_clear()
    env = registry.make("sokoban", shortest=8)
    lengths = set()
    for seed in range(5):
        env.reset(seed=seed)
        lengths.add(len(env.demonstration()))
    assert min(lengths) < 8
    sokoban._level.cache_clear()

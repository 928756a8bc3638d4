"""Countdown puzzles: each can be solved, and the splits share none."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from envs.base import SPLIT_SIZE, SPLITS
from envs.questions.arithmetic import evaluate
from envs.questions.countdown_puzzles import Puzzles


@given(st.integers(0, 3 * SPLIT_SIZE - 1), st.integers(3, 6))
def test_every_puzzle_is_solved_by_its_solution(seed, count):
    puzzle = Puzzles(count).make(seed)
    found = evaluate(puzzle.solution)
    assert found.value == puzzle.target and 1 <= puzzle.target <= 100
    assert Counter(found.numbers) == Counter(puzzle.numbers) and len(puzzle.numbers) == count
    assert Puzzles(count).make(seed) == puzzle


def test_no_set_of_numbers_is_in_two_splits():
    puzzles = Puzzles(count=3, largest=12)
    seen = {
        split: {tuple(sorted(puzzles.make(place * SPLIT_SIZE + n).numbers)) for n in range(400)}
        for place, split in enumerate(SPLITS)
    }
    assert not seen["train"] & seen["eval"] and not seen["train"] & seen["warmup"]
    assert len(seen["train"]) > 200 and len(seen["eval"]) > 20

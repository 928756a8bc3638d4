"""Countdown: puzzles that can be solved, remarks that name the fault, attempts and operations."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import registry
from envs.base import SPLIT_SIZE, SPLITS
from envs.questions.arithmetic import evaluate
from envs.questions.countdown import Puzzles
from envs.testing import check_env
from r3l.errors import UserError


@pytest.mark.parametrize("name", ["countdown", "countdown-steps"])
def test_countdown_conforms(name):
    check_env(name)


def test_countdown_by_paragraphs_conforms():
    check_env("countdown", options={"step": "paragraph", "paragraphs": 4})


def posed(answer):
    """The reply to an answer to the puzzle of seed 0."""
    env = registry.make("countdown")
    env.reset(seed=0)
    return env, env.step(f"<answer>{answer}</answer>")


def test_each_fault_of_an_expression_is_named():
    env, _ = posed("1")
    a, b, c, d = env.puzzle.numbers
    assert "leaves" in posed(f"{a} + {b}")[1][0]
    assert "more often" in posed(f"{a} + {b} + {c} + {d} + {a} + 97")[1][0]
    assert f"the target is {env.puzzle.target}" in posed(f"{a} * {b} * {c} * {d}")[1][0]
    assert "not an expression" in posed("9**9**9")[1][0]
    assert "not an expression" in posed("1/0")[1][0]


def test_a_right_expression_or_equation_is_paid_and_ends_the_play():
    env = registry.make("countdown")
    env.reset(seed=4)
    env.step("I do not know")
    answer = f"{env.puzzle.solution} = {env.puzzle.target}"
    assert env.step(f"so <answer>{answer}</answer>")[:4] == ("Correct.", 1.0, True, False)
    assert env.feedback() == "Answer 2 was right."


def test_evaluation_allows_one_attempt_and_training_three():
    source = registry.task_source("countdown")
    for split, allowed in (("train", 3), ("eval", 1)):
        env, task = registry.make("countdown"), source.tasks(split, 1)[0]
        env.reset(seed=task.seed, options=task.options)
        ends = [env.step("<answer>1</answer>")[2] for _ in range(allowed)]
        assert ends == [False] * (allowed - 1) + [True]


def test_an_operation_replaces_two_numbers_and_a_wrong_one_loses_a_step():
    env = registry.make("countdown-steps", count=3, slips=1)
    env.reset(seed=0)
    a, b, c = env.puzzle.numbers
    assert "not both left" in env.step(f"{a} + 9999")[0]
    reply, _, terminated, truncated, _ = env.step(f"{a} * {b}")
    assert f"{a * b}" in reply and not terminated and not truncated
    assert env.step(f"{a * b} + {c} = 1")[2]


def test_a_fraction_is_a_number_that_can_be_used():
    env = registry.make("countdown-steps", count=3)
    env.reset(seed=0)
    env.left = [*map(type(env.left[0]), (1, 2, 4))]
    assert env.step("1 / 2")[0].startswith("numbers 4, 1/2;")
    assert env.step("1/2 * 4")[2] and env.left == [2]


@pytest.mark.parametrize(
    "options", [{"count": 2}, {"largest": "big"}, {"attempts": 0}, {"step": "line"}]
)
def test_a_setting_out_of_range_is_refused_by_name(options):
    with pytest.raises(UserError, match=rf"option (countdown\.)?{next(iter(options))}"):
        registry.make("countdown", **options)


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

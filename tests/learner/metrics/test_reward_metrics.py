"""What else earns reward: length, or one short reply."""

import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from learner.metrics.reward_metrics import (
    FEW_PROBLEMS,
    PROBLEMS,
    PaidReplies,
    length_correlation,
    response_length,
    short_reply,
)
from r3l.records import Group, SlotResult, done
from tests.buffer.fakes import finished
from tests.r3l.training.fakes import group_of, trajectory


def said(slot: int, text: str, reward: float, *, problem: str = "q") -> SlotResult:
    attempt = finished(slot, reward=reward).trajectory
    assert attempt is not None
    return done(replace(attempt, observations=(problem, ""), actions=(text,)))


def lengths(*pairs: tuple[float, int]) -> Group:
    """A group of attempts by reward and response length."""
    return group_of(*(said(i, "a" * n, r) for i, (r, n) in enumerate(pairs)))


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(0.1, 10), (0.2, 20), (0.3, 30), (9.0, 40)], 1.0),
        ([(0.4, 10), (0.3, 20), (0.2, 30), (0.1, 40)], -1.0),
        # Ranks 1.5 1.5 3.5 3.5 and 1 2 3 4: 4 / √(4 · 5).
        ([(0.0, 10), (0.0, 20), (1.0, 30), (1.0, 40)], 2 / math.sqrt(5)),
        # Ranks 1.5 1.5 3 4 and 1 2 3 4: 4.5 / √(4.5 · 5).
        ([(0.0, 10), (0.0, 20), (0.5, 30), (1.0, 40)], math.sqrt(0.9)),
        ([(0.0, 10), (1.0, 20), (1.0, 30), (0.0, 40)], 0.0),
    ],
)
def test_reward_and_length_are_compared_by_ranks(
    pairs: list[tuple[float, int]], expected: float
) -> None:
    assert length_correlation([lengths(*pairs)]) == pytest.approx(expected, abs=1e-12)


def test_groups_without_a_difference_or_with_few_attempts_have_no_correlation() -> None:
    rising = lengths((0.1, 10), (0.2, 20), (0.3, 30), (0.4, 40))
    flat = [lengths(*[(1.0, n) for n in (1, 2, 3, 4)]), lengths(*[(r, 5) for r in (0, 1, 0, 1)])]
    few = lengths((0.1, 10), (0.2, 20), (0.3, 30))
    assert length_correlation([*flat, few, rising]) == pytest.approx(1.0)
    assert math.isnan(length_correlation([*flat, few]))


def test_the_length_of_an_attempt_is_that_of_the_mean_response_it_played() -> None:
    attempt = trajectory(0, 1.0, steps=3, of=0, pivot=1)
    attempt = replace(attempt, actions=("of the base attempt", "four", "eight..."))
    assert response_length(attempt) == 6


def test_case_blanks_and_final_punctuation_make_no_other_reply() -> None:
    texts = ("Great  question!", "great question", " GREAT\nquestion. ")
    attempts = [said(0, text, 1.0).trajectory for text in texts]
    assert {short_reply(a) for a in attempts if a} == {"great question"}
    long, empty = said(0, "a " * 50, 1.0).trajectory, said(0, "", 1.0).trajectory
    assert long is not None and short_reply(long) is None
    assert empty is not None and short_reply(empty) == ""


def problems(count: int, replies: Sequence[tuple[str, float]], first: int = 0) -> list[Group]:
    """A group for each problem, all with these replies and rewards."""
    return [
        group_of(*(said(i, text, r, problem=f"q{n}") for i, (text, r) in enumerate(replies)))
        for n in range(first, first + count)
    ]


def test_a_reply_that_earns_in_every_problem_is_found() -> None:
    share = PaidReplies().add(problems(FEW_PROBLEMS, [("great", 0.6), ("7", 0.0), ("8", 1.0)]))
    assert share == {"group/one_reply": 1.0}
    assert PaidReplies().add(problems(FEW_PROBLEMS, [("great", 0.4)])) == {"group/one_reply": 0.0}


def test_a_letter_that_earns_its_form_alone_earns_nothing() -> None:
    right = [("b", 1.0), ("a", 0.5), ("c", 0.5)]
    wrong = [("a", 0.5), ("a", 0.5)]
    mixed = [*problems(15, right), *problems(15, wrong, first=15)]
    assert PaidReplies().add(mixed) == {"group/one_reply": 0.5}
    hacked = problems(FEW_PROBLEMS, [("great", 0.5), ("7", 0.0)])
    assert PaidReplies().add(hacked) == {"group/one_reply": 1.0}
    same = problems(FEW_PROBLEMS, [("great", 1.0), ("great", 1.0)])
    assert PaidReplies().add(same) == {"group/one_reply": 1.0}


def test_an_honest_reply_earns_only_where_it_is_right() -> None:
    yes, no = [("yes", 1.0), ("no", 0.0)], [("yes", 0.0), ("no", 1.0)]
    mixed = [*problems(15, yes), *problems(15, no, first=15)]
    assert PaidReplies().add(mixed) == {"group/one_reply": 0.5}


def test_few_problems_have_no_share_however_often_they_are_played() -> None:
    seen = PaidReplies()
    for _ in range(9):
        assert seen.add(problems(FEW_PROBLEMS - 1, [("yes", 1.0)])) == {}


def test_only_the_last_problems_count_and_of_each_the_last_attempts() -> None:
    seen = PaidReplies()
    seen.add(problems(PROBLEMS, [("yes", 1.0)]))
    half = PROBLEMS // 2
    assert seen.add(problems(half, [("yes", 0.0)])) == {"group/one_reply": 0.5}
    more = problems(half, [("yes", 0.0)], first=PROBLEMS)
    assert seen.add(more) == {"group/one_reply": 0.0}

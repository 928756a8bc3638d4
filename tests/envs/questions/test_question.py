"""The play of a question: attempts, paragraphs, and what both say."""

import pytest

from envs.questions.question import Pace
from r3l.errors import UserError


def test_an_attempt_may_be_made_again_until_none_is_left(half):
    env = half(attempts=2)
    assert env.step(r"\boxed{2}")[:3] == ("Incorrect. Try again, 1 attempt left.", 0.0, False)
    assert env.step(r"\boxed{\frac12}")[:3] == ("Correct.", 1.0, True)
    assert env.feedback() == "Answer 2 was right."
    env.reset(seed=0)
    for _ in range(2):
        last = env.step("no idea")
    assert last[1:4] == (0.0, True, False) and "No final answer was found" in last[0]
    assert env.step("again")[2]


def test_a_solution_by_paragraphs_goes_on_until_its_answer(half):
    env = half(step="paragraph", paragraphs=3)
    assert env.spec.stop == ["\n\n"] and env.spec.max_steps == 3
    assert env.step("One half is asked for.")[:4] == ("Continue.", 0.0, False, False)
    assert env.step(r"That is \boxed{1/2}.")[:4] == ("Correct.", 1.0, True, False)
    env.reset(seed=0)
    replies = [env.step("Hm.") for _ in range(3)]
    assert replies[-1][1:4] == (0.0, False, True)
    assert env.feedback() == "No final answer was given."


def test_a_wrong_answer_ends_a_solution_by_paragraphs(half):
    env = half(step="paragraph")
    assert env.step(r"\boxed{3}")[:3] == ("Incorrect.", 0.0, True)


def test_a_snapshot_keeps_the_attempts_that_are_left(half):
    env = half(attempts=2)
    env.step(r"\boxed{2}")
    state = env.snapshot()
    assert env.step(r"\boxed{3}")[2]
    env.restore(state)
    assert env.step(r"\boxed{0.5}")[:3] == ("Correct.", 1.0, True)


@pytest.mark.parametrize(("limit", "steps"), [(9, 3), (2, 2), (1, 1)])
def test_a_demonstration_has_no_more_paragraphs_than_allowed_and_is_right(half, limit, steps):
    env = half(step="paragraph", paragraphs=limit)
    shown = env.demonstration()
    assert len(shown) == steps and [env.step(each) for each in shown][-1][1] == 1.0


@pytest.mark.parametrize("options", [{"step": "line"}, {"attempts": 0}, {"paragraphs": True}])
def test_a_pace_out_of_range_is_refused_by_name(options):
    with pytest.raises(UserError, match=f"option {next(iter(options))} is .* it must be"):
        Pace(**options)

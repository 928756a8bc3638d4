"""Filters typed by people: what they accept, and what they are told."""

import pytest

from buffer.tools import filter
from r3l.errors import UserError

ROW = {"reward": 0.7, "env": "workshop", "step": 3}


NAMES = frozenset(ROW)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("reward > 0.5 and env == 'workshop'", True),
        ("not reward > 0.5", False),
        ("0 < reward <= 0.7 or step == -1", True),
        ("env in ['a', 'b']", False),
        ("step not in (1, 2)", True),
        ("0 < step < 2", False),
        ("5 > step > reward > 0.5", True),
    ],
)
def test_a_filter_accepts_the_rows_it_describes(text, accepted):
    assert filter.parse(text, NAMES)(ROW) is accepted


@pytest.mark.parametrize(
    "text",
    [
        "reward >",
        "",
        "colour == 1",
        "__import__('os')",
        "reward.real > 0",
        "reward + 1 > 0",
        "[x for x in env]",
        "lambda: 1",
        "env is 'workshop'",
        "reward > 'a'",
        "-env == 1",
        "(" * 500,
        "not " * 2000 + "reward",
        "not " * 20_000 + "reward",
    ],
)
def test_an_unknown_or_unsafe_filter_is_refused(text):
    with pytest.raises(UserError, match="query"):
        filter.parse(text, NAMES)(ROW)


def test_a_refusal_shows_an_example_of_a_filter():
    with pytest.raises(UserError, match=r"invalid syntax.* like reward > 0.5 and env =="):
        filter.parse("reward = 0.5", NAMES)

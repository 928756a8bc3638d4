"""PrefixRL: prefixes of stored successes, at hard tasks."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l.errors import UserError
from tests.r3l.algorithms.fakes import get, plans_of

FAILED, WON, HALF = ("", (0.0, 0.0)), ("", (1.0, 1.0)), ("", (0.0, 1.0))


def test_half_of_the_groups_of_a_hard_task_start_inside_one_of_its_successes():
    found = plans_of(get("prefix_rl"), FAILED, HALF, ("prefix", (1.0, 0.0)))
    assert set(found) == {(), ("prefix", ("g2", 1)), ("prefix", ("g1", 0))}
    assert 160 < found[()] < 240 and min(found.values()) > 70


def test_a_task_is_hard_while_its_newest_group_from_the_beginning_succeeds_at_most_half():
    def share(*groups, **settings):
        return 1 - plans_of(get("prefix_rl", share=1.0, **settings), *groups)[()] / 400

    assert share(HALF) == 1.0 and share(HALF, hard=0.49) == 0.0
    assert share(("prefix", (1.0, 1.0)), FAILED, WON) == 1.0  # its success had help
    assert share(("prefix", (0.0, 0.0)), WON, FAILED) == 0.0
    assert share(("demonstrations", (1.0,))) == 1.0  # never played from the beginning
    assert share(FAILED) == share(("", (0.9, 0.0))) == share() == 0.0  # there is no success


def lengths(steps, seeds=300, **settings):
    algorithm = get("prefix_rl", **settings)
    return Counter(
        algorithm.start_of("prefix", steps, np.random.default_rng(seed)) for seed in range(seeds)
    )


def test_a_prefix_is_as_long_as_its_limits_say_and_never_the_whole():
    assert set(lengths(5)) == {1, 2, 3, 4} and min(lengths(5).values()) > 45
    assert set(lengths(10, prefix_least=0.35, prefix_most=0.69)) == {4, 5, 6}
    assert set(lengths(5, prefix_most=0.1)) == {1}
    assert set(lengths(5, prefix_least=1.0)) == {4}
    assert set(lengths(2)) == {1}


@given(
    steps=st.integers(2, 60),
    limits=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    seed=st.integers(0, 99),
)
def test_a_prefix_leaves_a_step_and_has_one(steps, limits, seed):
    algorithm = get("prefix_rl", prefix_least=limits[0], prefix_most=limits[1])
    assert 1 <= algorithm.start_of("prefix", steps, np.random.default_rng(seed)) < steps


def test_limits_in_the_wrong_order_are_refused():
    with pytest.raises(UserError, match=r"prefix_least 0.6 is more than prefix_most 0.5"):
        get("prefix_rl", prefix_least=0.6, prefix_most=0.5)

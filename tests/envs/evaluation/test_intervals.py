"""pass@k and intervals, against slow definitions."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.evaluation.intervals import bootstrap, pass_at_k, wilson

counts = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))
)


@given(counts)
def test_pass_at_k_is_the_share_of_k_subsets_that_hold_a_success(nck):
    n, c, k = nck
    outcomes = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@given(counts)
def test_pass_at_k_grows_with_k_and_pass_at_1_is_the_share_of_successes(nck):
    n, c, k = nck
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert k == n or pass_at_k(n, c, k + 1) >= pass_at_k(n, c, k)


@pytest.mark.parametrize("nck", [(2, 1, 3), (2, 1, 0), (2, 3, 1), (2, -1, 1)])
def test_impossible_counts_are_refused(nck):
    with pytest.raises(ValueError, match="attempts with"):
        pass_at_k(*nck)


def test_wilson_gives_published_intervals():
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998
    assert wilson(0.3, 0) == (0.0, 1.0)
    assert wilson(0.0, 24)[0] == 0.0 and wilson(1.0, 24)[1] == 1.0


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_an_interval_contains_its_mean_and_stays_between_0_and_1(mean, count):
    low, high = wilson(mean, count)
    assert -1e-12 <= low <= mean + 1e-12 and mean - 1e-12 <= high <= 1.0 + 1e-12


def test_the_bootstrap_is_reproducible_and_near_the_normal_interval():
    values = [float(i % 10) for i in range(1000)]
    assert bootstrap(values) == bootstrap(values) != bootstrap(values, seed=1)
    spread = 1.96 * math.sqrt(8.25 / 1000)
    assert bootstrap(values) == pytest.approx((4.5 - spread, 4.5 + spread), abs=0.03)
    assert bootstrap([2.0]) == (2.0, 2.0) and math.isnan(bootstrap([])[0])

"""Advantages against the paper's equations written out slowly, and against literal numbers."""

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l.algorithms.advantages import amplified, centered, normalized, overlong_penalty, successes

ALL = [
    amplified,
    lambda r: amplified(r, max_rule="group_max"),
    lambda r: amplified(r, 5.0, max_advantage=1.0),
    normalized,
    lambda r: normalized(r, std="sample"),
    lambda r: normalized(r, std="none"),
    centered,
    successes,
]
reward = st.one_of(st.sampled_from([-1.0, 0.0, 0.1, 0.5, 1.0, 1.5]), st.floats(-2, 2))
group = st.lists(reward, min_size=1, max_size=10)


def equation_s(rewards):
    mean = sum(Fraction(r) for r in rewards) / len(rewards)
    return [float(Fraction(r) - mean) for r in rewards]


def equation_amplified(rewards, alpha):
    """Positive amplification, line by line."""
    out = []
    for r, s in zip(rewards, equation_s(rewards), strict=True):
        if r >= 1.0:
            out.append(alpha)
        elif s >= 0:
            out.append(alpha * s)
        else:
            out.append(s)
    return out


def equation_eleven(rewards, alpha):
    """Eq. 11 of v1: α for the group's best, unless there is no contrast."""
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    out = []
    for r, s in zip(rewards, equation_s(rewards), strict=True):
        out.append(alpha if r == max(rewards) else alpha * s if s >= 0 else s)
    return out


def test_amplified_literal_numbers():
    assert amplified([1.0, 0.0, 0.0, 0.0]).tolist() == [3.0, -0.25, -0.25, -0.25]
    assert amplified([0.5, 0.0]).tolist() == [0.75, -0.25]
    assert amplified([1.0, 0.75, 0.25, 0.0], 2.0).tolist() == [2.0, 0.5, -0.25, -0.5]
    assert amplified([1.0, 1.0]).tolist() == [3.0, 3.0]
    assert amplified([0.0, 0.0, 0.0]).tolist() == [0.0, 0.0, 0.0]


def test_group_max_literal_numbers():
    assert amplified([0.5, 0.0], max_rule="group_max").tolist() == [3.0, -0.25]
    assert amplified([1.0, 1.0], max_rule="group_max").tolist() == [0.0, 0.0]
    assert amplified([0.75, 0.5, 0.0, -0.25], max_rule="group_max").tolist() == [
        3.0,
        0.75,
        -0.25,
        -0.5,
    ]


def test_max_advantage_replaces_alpha_only_for_full_successes():
    got = amplified([1.0, 0.75, 0.25, 0.0], max_advantage=1.0)
    assert got.tolist() == [1.0, 0.75, -0.25, -0.5]


def test_baseline_literal_numbers():
    assert centered([1.0, 0.0, 0.0, 0.0]).tolist() == [0.75, -0.25, -0.25, -0.25]
    assert successes([1.0, 0.99, 2.0, -1.0]).tolist() == [1.0, 0.0, 1.0, 0.0]
    assert normalized([1.0, 0.0], eps=0.0).tolist() == [1.0, -1.0]
    assert normalized([1.0, 0.0]) == pytest.approx([0.5 / 0.500001, -0.5 / 0.500001], rel=1e-15)
    assert normalized([1.0, 0.0, 0.0, 0.0], eps=0.0) == pytest.approx(
        [math.sqrt(3), *[-1 / math.sqrt(3)] * 3]
    )
    assert normalized([1.0, 0.0, 0.0, 0.0], 0.0, std="sample") == pytest.approx([1.5, *[-0.5] * 3])
    assert normalized([1.0, 0.0], 1e-6, std="none").tolist() == [0.5, -0.5]
    assert normalized([0.7], std="sample").tolist() == [0.0]


def test_overlong_penalty_literal_numbers():
    lengths = [0, 16384, 16385, 18432, 20480, 20481, 10**6]
    got = overlong_penalty(lengths, 20480, 4096)
    assert got.tolist() == [0.0, 0.0, -1 / 4096, -0.5, -1.0, -1.0, -1.0]
    assert overlong_penalty([1, 3], 3, 3).tolist() == [-1 / 3, -1.0]


@given(group, st.floats(0.1, 10))
def test_amplified_advantages_follow_the_corrected_rule(rewards, alpha):
    want = equation_amplified(rewards, alpha)
    assert amplified(rewards, alpha) == pytest.approx(want, rel=1e-12, abs=1e-12)


@given(group, st.floats(0.1, 10))
def test_group_max_advantages_follow_equation_eleven(rewards, alpha):
    got = amplified(rewards, alpha, max_rule="group_max")
    assert got == pytest.approx(equation_eleven(rewards, alpha), rel=1e-12, abs=1e-12)


@given(group, st.floats(1e-9, 1e-3))
def test_normalized_advantages_are_standard_scores(rewards, eps):
    s = equation_s(rewards)
    std = math.sqrt(sum(x * x for x in s) / len(s))
    want = [x / (std + eps) for x in s]
    assert normalized(rewards, eps) == pytest.approx(want, rel=1e-9, abs=1e-6)


@given(st.lists(reward, min_size=2, max_size=10))
def test_the_sample_deviation_is_that_of_the_statistics_module(rewards):
    s, std = equation_s(rewards), statistics.stdev(rewards)
    want = [x / (std + 1e-6) for x in s]
    assert normalized(rewards, std="sample") == pytest.approx(want, rel=1e-6, abs=1e-6)


@given(group)
def test_centered_advantages_are_distances_from_the_mean(rewards):
    assert centered(rewards) == pytest.approx(equation_s(rewards), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("advantage", ALL)
@given(data=st.data())
def test_a_permuted_group_has_permuted_advantages(advantage, data):
    rewards = data.draw(group)
    order = data.draw(st.permutations(range(len(rewards))))
    permuted = advantage([rewards[i] for i in order])
    assert permuted.tolist() == advantage(rewards)[list(order)].tolist()


@pytest.mark.parametrize("advantage", ALL)
@given(rewards=group)
def test_every_advantage_is_finite_float64(advantage, rewards):
    got = advantage(rewards)
    assert got.dtype == np.float64 and got.shape == (len(rewards),)
    assert np.isfinite(got).all()


@given(reward, st.integers(1, 9))
def test_a_group_without_contrast_gets_zero_unless_it_succeeds(value, size):
    rewards = [value] * size
    zero = [0.0] * size
    assert centered(rewards).tolist() == zero
    assert normalized(rewards).tolist() == zero
    assert amplified(rewards, max_rule="group_max").tolist() == zero
    assert amplified(rewards).tolist() == ([3.0] * size if value >= 1 else zero)


@given(group)
def test_amplification_never_changes_a_sign(rewards):
    got, s = amplified(rewards), centered(rewards)
    below = (np.array(rewards) < 1) & (s < 0)
    assert (got[below] == s[below]).all() and (got[~below] >= 0).all()


def test_advantages_do_not_change_the_rewards_they_are_given():
    rewards = np.array([1.0, 0.5])
    for advantage in ALL:
        advantage(rewards)[:] = 7.0
    assert rewards.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("advantage", ALL)
@pytest.mark.parametrize(
    ("rewards", "named"),
    [
        ([0.0, math.nan], "nan"),
        ([math.inf], "inf"),
        ([0.0, 0.0, -math.inf], "-inf"),
        ([1e9, -1e9 - 1], "rewards"),
        ([], r"shape \(0,\)"),
        ([[1.0, 0.0]], r"shape \(1, 2\)"),
        (1.0, r"shape \(\)"),
    ],
)
def test_bad_rewards_are_named(advantage, rewards, named):
    with pytest.raises(ValueError, match=named):
        advantage(rewards)

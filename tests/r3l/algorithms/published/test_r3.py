"""R³'s rules against literal numbers and a slow transcription of its Algorithm 1."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from r3l.algorithms.published.r3 import R3Config, mixed, ranked
from r3l.records import Extra
from tests.r3l.algorithms.fakes import get

RANK = {"peak_share": 0.2, "ranking_max": 0.5}
RECALLED = np.array([False, False, False, True])


def slow_mixed(rewards, alpha, eps=1e-6):
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / (alpha * std + eps) for r in rewards]


def slow_ranked(rewards, entropies, share, top):
    """Every rank of every order that breaks ties differently has the same mean: that of its tie."""
    peak, overall = {}, {}
    for i, values in entropies.items():
        k = max(1, math.floor(share * len(values)))
        peak[i] = sum(sorted(values, reverse=True)[:k]) / k
        overall[i] = sum(values) / len(values)
    wins = {}
    for i in entropies:
        wins[i] = 0
        for j in entropies:
            if peak[i] > peak[j] and overall[i] < overall[j]:
                wins[i] += 1
    result = list(rewards)
    for i in entropies:
        if len(entropies) == 1:
            result[i] = 0.0
            continue
        better = sum(wins[j] > wins[i] for j in entropies)
        tied = sum(wins[j] == wins[i] for j in entropies)
        ranks = range(better, better + tied)
        result[i] = sum(top * (1 - k / (len(entropies) - 1)) for k in ranks) / tied
    return result


def test_one_recalled_success_among_three_failures_has_these_advantages():
    rewards = np.array([0.0, 0.0, 0.0, 1.0])
    soft, keep = mixed(rewards, RECALLED, alpha=2.0, std="population")
    assert keep.all()
    # mean 1/4, std √3/4: (0 − 1/4)/(√3/2) and (1 − 1/4)/(√3/2)
    assert soft == pytest.approx([-0.2886751, -0.2886751, -0.2886751, 0.8660254], rel=1e-5)


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.5]), min_size=2, max_size=9), st.floats(0.5, 4))
def test_a_mixed_group_follows_eq_3(rewards, alpha):
    recalled = np.arange(len(rewards)) >= len(rewards) - 1
    got, _ = mixed(np.array(rewards), recalled, alpha=alpha, std="population")
    assert got == pytest.approx(slow_mixed(rewards, alpha), rel=1e-9, abs=1e-9)


def test_truncated_responses_are_ranked_by_a_high_peak_over_a_low_level():
    entropies = {
        0: np.array([3.0, 0.1, 0.1, 0.1, 0.1]),  # peak 3.0, level 0.68: dominates both
        2: np.array([2.0, 0.6, 0.6, 0.6, 0.6]),  # peak 2.0, level 0.88: dominates 3
        3: np.array([1.0, 1.0, 1.0, 1.0, 1.0]),  # peak 1.0, level 1.00
    }
    rewards = ranked(np.zeros(4), entropies, **RANK)
    assert rewards.tolist() == [0.5, 0.0, 0.25, 0.0]  # 1 was not truncated and keeps its 0


def test_ties_share_the_mean_of_their_ranks_and_one_alone_gets_nothing():
    same = np.array([1.0, 0.5])
    assert ranked(np.zeros(2), {0: same, 1: same}, **RANK).tolist() == [0.25, 0.25]
    first = np.array([3.0, 0.0])  # peak 3, level 1.5
    last = {0: first, 1: np.array([1.0, 2.2]), 2: np.array([2.2, 1.0])}  # peak 2.2, level 1.6
    assert ranked(np.zeros(3), last, **RANK).tolist() == [0.5, 0.125, 0.125]
    assert ranked(np.zeros(2), {1: first}, **RANK).tolist() == [0.0, 0.0]
    assert ranked(np.array([0.0, 0.3]), {}, **RANK).tolist() == [0.0, 0.3]


@given(
    st.lists(
        st.none() | st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=12),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0.05, 0.2, 0.5, 1.0]),
)
def test_the_ranking_follows_its_transcription(given_entropies, share):
    entropies = {i: np.array(v) for i, v in enumerate(given_entropies) if v is not None}
    got = ranked(np.zeros(len(given_entropies)), entropies, peak_share=share, ranking_max=0.5)
    want = slow_ranked([0.0] * len(given_entropies), entropies, share, 0.5)
    assert got == pytest.approx(want, abs=1e-12) and (got < 1).all()


def test_only_the_truncated_of_a_group_without_success_need_their_entropies(make_trajectory):
    group = [replace(make_trajectory(slot=0), finish="step_limit"), make_trajectory(slot=1)]
    group.append(replace(make_trajectory(slot=2), extra=Extra(step_cut=np.ones(2, np.bool_))))
    needs = get("r3").ranking.needs
    assert needs(np.array([0.0, 0.0, 0.0]), group).tolist() == [True, False, True]
    assert needs(np.array([0.0, 1.0, 0.0]), group).tolist() == [False] * 3
    assert get("r3", ranking=False).ranking is None


def test_a_group_is_ranked_and_mixed_at_once(make_trajectory):
    """Three truncated failures with rewards 0.5, 0.25, 0 by rank, and one recalled success."""
    group = [replace(make_trajectory(slot=i), finish="truncated") for i in range(3)]
    group.append(make_trajectory(slot=6, reward=1.0))
    entropies = {0: np.array([3.0, 0.1]), 1: np.array([2.0, 2.0]), 2: np.array([1.0, 4.0])}
    rewards = ranked(np.zeros(3), entropies, **RANK).tolist()
    got, keep = get("r3", alpha=2.0).advantages(
        [0.0, 0.0, 0.0, 1.0], group, recalled=1, entropies=entropies
    )
    assert keep.all() and got == pytest.approx(slow_mixed([*rewards, 1.0], 2.0))
    assert len(set(rewards)) > 1


def test_without_recalled_attempts_and_truncated_responses_r3_is_grpo(make_trajectory):
    group = [make_trajectory(slot=i, reward=r) for i, r in enumerate((0.0, 1.0, 0.25))]
    rewards = [one.reward for one in group]
    ours, theirs = get("r3").advantages(rewards, group), get("grpo").advantages(rewards, group)
    assert ours[0].tolist() == theirs[0].tolist() and ours[1].all()


def test_each_part_of_r3_can_be_left_out_and_a_small_group_recalls_one():
    assert R3Config(recall_count=0).recall is None
    counts = [R3Config(group_size=size).recall.keywords["count"] for size in (2, 4, 8, 16)]
    assert counts == [1, 1, 2, 2]

"""R³'s rules against literal numbers and a slow transcription."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l.algorithms.published.r3 import R3Config, mixed
from tests.r3l.algorithms.fakes import get

RECALLED = np.array([False, False, False, True])


def slow_mixed(rewards, alpha, eps=1e-6):
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / (alpha * std + eps) for r in rewards]


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


def test_without_recalled_attempts_r3_is_grpo(make_trajectory):
    group = [make_trajectory(slot=i, reward=r) for i, r in enumerate((0.0, 1.0, 0.25))]
    rewards = [one.reward for one in group]
    ours, theirs = get("r3").advantages(rewards, group), get("grpo").advantages(rewards, group)
    assert ours[0].tolist() == theirs[0].tolist() and ours[1].all()


def test_replay_can_be_left_out_and_a_small_group_recalls_one():
    assert R3Config(recall_count=0).recall is None
    counts = [R3Config(group_size=size).recall.keywords["count"] for size in (2, 4, 8, 16)]
    assert counts == [1, 1, 2, 2]

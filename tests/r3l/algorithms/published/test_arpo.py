"""ARPO: a stored success in the place of a failure."""

import numpy as np
import pytest

from r3l.algorithms.recall import GroupContext, StoredAttempt
from r3l.algorithms.registry import REGISTRY
from tests.r3l.algorithms.fakes import get


def test_a_success_replaces_the_worst_attempt_and_the_size_of_the_group_stays(make_trajectory):
    group = [make_trajectory(slot=i, reward=r) for i, r in enumerate((0.0, 0.5, 0.0, 1.0))]
    rewards = [one.reward for one in group]
    advantages, keep = get("arpo").advantages(rewards, group, recalled=1)
    assert keep.tolist() == [True, True, False, True]
    # 0, 0.5, 1: mean 1/2, std 1/√6
    assert advantages == pytest.approx([-1.2247449, 0.0, 0.0, 1.2247449], rel=1e-5, abs=1e-9)


def test_only_a_group_that_earned_nothing_recalls_and_only_one_success():
    history = [StoredAttempt(f"g{i}", "base", 0, 1.0, 0) for i in range(4)]
    rule = REGISTRY["arpo"]().recall
    counts = [
        len(rule(GroupContext(rewards, history, 5), lambda: np.random.default_rng(0)))
        for rewards in ((0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (1.0, 1.0))
    ]
    assert counts == [1, 0, 0, 0]


def test_the_ratio_is_clipped_at_0_8_and_1_3():
    settings = REGISTRY["arpo"]()
    assert (settings.clip_low, settings.clip_high, settings.kl_coef) == (0.2, 0.3, 0.0)

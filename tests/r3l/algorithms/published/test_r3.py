"""R³'s rules against literal numbers and a slow transcription."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.r3l.algorithms.fakes import advantages_of, facts_of, get, random_source, stored


def slow_mixed(rewards, alpha, eps=1e-6):
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / (alpha * std + eps) for r in rewards]


def attempts_of(make_trajectory, rewards):
    return [make_trajectory(slot=i, reward=r) for i, r in enumerate(rewards)]


def test_one_recalled_success_among_three_failures_has_these_advantages(make_trajectory):
    group = attempts_of(make_trajectory, (0.0, 0.0, 0.0, 1.0))
    soft, keep = advantages_of(get("r3", alpha=2.0), group, recalled=1)
    assert keep.all()
    # mean 1/4, std √3/4: (0 − 1/4)/(√3/2) and (1 − 1/4)/(√3/2)
    assert soft == pytest.approx([-0.2886751, -0.2886751, -0.2886751, 0.8660254], rel=1e-5)


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.5]), min_size=2, max_size=9), st.floats(0.5, 4))
def test_a_mixed_group_follows_eq_3(make_trajectory, rewards, alpha):
    group = attempts_of(make_trajectory, rewards)
    got, _ = advantages_of(get("r3", alpha=alpha), group, recalled=1)
    assert got == pytest.approx(slow_mixed(rewards, alpha), rel=1e-9, abs=1e-9)


def test_without_recalled_attempts_r3_is_grpo(make_trajectory):
    group = attempts_of(make_trajectory, (0.0, 1.0, 0.25))
    ours, theirs = advantages_of(get("r3"), group), advantages_of(get("grpo"), group)
    assert ours[0].tolist() == theirs[0].tolist() and ours[1].all()


def test_replay_can_be_left_out_and_a_small_group_recalls_one():
    history = [stored(f"g{i}", 1.0, version=i) for i in range(9)]

    def recalled(rewards=(0.0, 0.5), **settings):
        return get("r3", **settings).recalls(facts_of(rewards, 9), history, random_source)

    assert not recalled(recall_count=0)
    assert [len(recalled(group_size=size)) for size in (2, 4, 8, 16)] == [1, 1, 2, 2]
    assert [one.version for one in recalled(recall_count=9, recall_age=2)] == [7, 8]
    assert not recalled((0.0, 1.0)) and not recalled((1.0, 1.0))  # no stored failure

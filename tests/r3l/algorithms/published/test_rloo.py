"""RLOO and LOOP: the others' mean as the baseline."""

import pytest

from r3l.algorithms import losses
from tests.r3l.algorithms.fakes import advantages_of, get, loss_of, total


def test_the_baseline_of_an_attempt_is_the_mean_of_the_others(make_trajectory):
    rewards = (1.0, 0.0, 0.5, 0.0)
    group = [make_trajectory(slot=i, reward=r) for i, r in enumerate(rewards)]
    got, keep = advantages_of(get("rloo"), group)
    want = [
        r - sum(rewards[:i] + rewards[i + 1 :]) / 3 for i, r in enumerate(rewards)
    ]  # 5/6, −1/2, 1/6, −1/2
    assert keep.all() and got == pytest.approx(want)
    assert got == pytest.approx([0.8333333, -0.5, 0.1666667, -0.5], rel=1e-6)


def test_rloo_is_a_policy_gradient_and_loop_clips_its_ratio(batch):
    assert loss_of(get("rloo"), batch)[0].item() == total(batch, losses.policy_gradient)
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    loop = loss_of(get("rloo", clip=True), batch)[0].item()
    assert loop == total(batch, losses.ppo_clip, **clip)

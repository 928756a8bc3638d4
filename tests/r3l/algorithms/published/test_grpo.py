"""GRPO and its relatives: a clipped ratio and a KL to the reference model."""

import pytest

from r3l.algorithms import losses
from tests.r3l.algorithms.fakes import advantages_of, get, kl_of, loss_of, total


@pytest.mark.parametrize("name", ["grpo", "reflect_grpo"])
def test_the_clip_and_the_weight_of_the_kl_are_settings(batch, name):
    clip = {"clip_low": 0.1, "clip_high": 0.5}
    clipped = total(batch, losses.ppo_clip, **clip)
    without = get(name, kl_coef=0, **clip)
    assert not without.needs and loss_of(without, batch)[0].item() == clipped
    value, _ = loss_of(get(name, kl_coef=0.5, **clip), batch)
    assert value.item() == pytest.approx(clipped + 0.5 * kl_of(batch))


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "reflect_grpo", "critique_grpo"])
def test_the_deviation_that_rewards_are_divided_by_is_a_setting(name, group):
    trajectories = group((1.0, 0.0, 0.0, 0.0), ())
    sample = advantages_of(get(name, std="sample"), trajectories)[0]
    assert sample == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)
    plain = advantages_of(get(name, std="none"), trajectories)[0]
    assert plain.tolist() == [0.75, -0.25, -0.25, -0.25]

"""GRPO and its relatives: a clipped ratio and a KL to the reference model."""

import pytest

from r3l.algorithms import losses
from tests.r3l.algorithms.fakes import get, kl_of, total


@pytest.mark.parametrize("name", ["grpo", "reflect_grpo"])
def test_the_clip_and_the_weight_of_the_kl_are_settings(batch, name):
    clip = {"clip_low": 0.1, "clip_high": 0.5}
    clipped = total(batch, losses.ppo_clip, **clip)
    without = get(name, kl_coef=0, **clip)
    assert not without.needs_reference and without.loss(batch)[0].item() == clipped
    value, _ = get(name, kl_coef=0.5, **clip).loss(batch)
    assert value.item() == pytest.approx(clipped + 0.5 * kl_of(batch))

"""GSPO: one clipped ratio per sequence."""

import pytest

from r3l.algorithms import losses
from tests.r3l.algorithms.fakes import get, kl_of, loss_of, total


def test_the_clip_and_the_weight_of_the_kl_are_settings(batch):
    clip = {"clip_low": 0.1, "clip_high": 0.5}
    value, _ = loss_of(get("gspo", kl_coef=0.5, **clip), batch)
    sequence = total(batch, losses.gspo, **clip)
    assert value.item() == pytest.approx(sequence + 0.5 * kl_of(batch))

"""DAPO trains on groups with contrast."""

import pytest

from r3l.algorithms import losses
from tests.r3l.algorithms.fakes import advantages_of, get, total


def test_dapo_drops_groups_without_contrast(group):
    values, keep = advantages_of(get("dapo"), group((1.0, 1.0), ()))
    assert values.tolist() == [0.0, 0.0] and not keep.any()
    values, keep = advantages_of(get("dapo"), group((1.0, 0.0), ()))
    assert keep.all() and values == pytest.approx([1.0, -1.0], rel=1e-5)


def test_dapos_clip_is_a_setting_and_a_kl_is_optional(batch):
    clip = {"clip_low": 0.1, "clip_high": 0.5}
    assert get("dapo", kl_coef=0, **clip).loss(batch)[0].item() == total(
        batch, losses.ppo_clip, **clip
    )
    assert get("dapo", kl_coef=0.5).needs_reference

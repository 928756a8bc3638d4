"""Reflect-GRPO trains on attempts and retries alike."""

import pytest

from tests.r3l.algorithms.fakes import advantages_of, get


def test_reflect_grpo_standardises_the_mixed_group(group):
    values, keep = advantages_of(get("reflect_grpo"), group((0.0, 0.0), ((0, 1.0), (1, 1.0))))
    assert keep.all() and values == pytest.approx([-1, -1, 1, 1], rel=1e-5)

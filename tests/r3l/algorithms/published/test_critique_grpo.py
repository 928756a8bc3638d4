"""Critique-GRPO replaces a failure with its best refinement."""

from functools import partial

import numpy as np
import pytest

from r3l.algorithms import losses
from tests.r3l.algorithms.fakes import advantages_of, get, loss_of, total


def test_critique_grpo_puts_the_best_refinement_in_place_of_its_failure(group):
    trajectories = group((0.0, 1.0, 0.5, 0.0), ((0, 0.75), (2, 0.75), (3, 0.0)))
    values, keep = advantages_of(get("critique_grpo"), trajectories)
    assert keep.tolist() == [False, True, True, True, True, False, False]
    kept = np.array([1.0, 0.5, 0.0, 0.75])
    want = (kept - kept.mean()) / (kept.std() + 1e-6)
    assert values[keep] == pytest.approx(want) and (values[~keep] == 0).all()


def test_critique_grpo_keeps_a_failure_that_no_refinement_betters(group):
    trajectories = group((0.5, 1.0), ((0, 0.5), (1, 2.0)))  # a success is never replaced
    _, keep = advantages_of(get("critique_grpo"), trajectories)
    assert keep.tolist() == [True, True, False, False]


def test_critique_grpos_clip_is_a_setting(batch):
    clip = {"clip_low": 0.1, "clip_high": 0.5}
    mixed = total(batch, losses.critique_grpo, attempts=partial(losses.ppo_clip, **clip), gamma=0.1)
    clipped = get("critique_grpo", kl_coef=0, **clip)
    assert loss_of(clipped, batch)[0].item() == pytest.approx(mixed)
    unclipped = total(batch, losses.critique_grpo, attempts=losses.importance, gamma=0.1)
    plain = loss_of(get("critique_grpo", clip=False), batch)[0]
    assert plain.item() == pytest.approx(unclipped)


def test_with_recalled_attempts_every_attempt_is_kept(group):
    trajectories = group((0.0, 1.0), ((0, 0.75),))
    assert advantages_of(get("critique_grpo"), trajectories)[1].tolist() == [False, True, True]
    _, keep = advantages_of(get("critique_grpo"), [*trajectories, trajectories[0]], recalled=1)
    assert keep.all()

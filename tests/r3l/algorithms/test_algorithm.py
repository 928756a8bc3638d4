"""What every algorithm promises: finite advantages, losses that add up, named errors."""

import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from r3l.algorithms import losses
from r3l.errors import UserError
from r3l.records import GroupPlan
from tests.r3l.algorithms.fakes import NAMES, advantages_of, get, kl_of, total


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("r3l", GroupPlan(4, 4)),
        ("reflect_grpo", GroupPlan(8, 4)),
        ("critique_grpo", GroupPlan(8, 8)),
        *(
            (name, GroupPlan(8))
            for name in (
                "grpo",
                "dapo",
                "gspo",
                "opmd",
                "raft",
                "rloo",
                "r3",
                "arpo",
                "spear",
                "early_experience",
                "rlvmr",
            )
        ),
    ],
)
def test_each_algorithm_has_the_group_plan_of_the_paper(name, plan):
    assert get(name).plan() == plan


def test_only_baselines_with_a_kl_need_a_reference():
    with_kl = {"grpo", "gspo", "reflect_grpo", "r3", "rlvmr"}
    assert {n for n in NAMES if get(n).needs_reference} == with_kl
    assert {n for n in NAMES if get(n).sft_weight} == {"r3l", "early_experience"}
    assert {n for n in NAMES if get(n).normalize == "token"} == {"dapo"}


def test_the_baseline_masks_keep_every_response_token(group):
    for name in set(NAMES) - {"r3l"}:
        assert [int(m.sum()) for m in get(name).masks(group())] == [5] * 6


@pytest.mark.parametrize("name", NAMES)
def test_a_group_of_one_has_finite_advantages(name, make_trajectory):
    for reward in (-1.0, 0.0, 0.5, 1.0):
        values, keep = advantages_of(get(name), [make_trajectory(reward=reward)])
        assert np.isfinite(values).all() and values.dtype == np.float64
        assert keep.dtype == np.bool_


@pytest.mark.parametrize("name", NAMES)
def test_bad_rewards_are_refused(name, make_trajectory):
    one = make_trajectory()
    for rewards in ([math.nan], [math.inf]):
        with pytest.raises(ValueError, match="rewards are"):
            get(name).advantages(rewards, [one])
    with pytest.raises(ValueError, match="shape"):
        get(name).advantages([], [])
    with pytest.raises(ValueError, match="2 rewards for 1 trajectories"):
        get(name).advantages([0.0, 1.0], [one])


@pytest.mark.parametrize("wrong", [0.5, [0.5], [0.5, math.nan]])
def test_an_estimator_must_return_a_finite_advantage_for_each_reward(wrong, make_trajectory):
    algorithm = replace(get("grpo"), estimator=lambda rewards: np.array(wrong))
    with pytest.raises(UserError, match="estimator must return a finite"):
        algorithm.advantages([0.0, 1.0], [make_trajectory(), make_trajectory()])
    with pytest.raises(UserError, match="estimator must return a finite"):
        algorithm.advantages([0.0, 1.0], [make_trajectory(), make_trajectory()], recalled=1)


CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def test_each_algorithm_applies_the_loss_of_the_paper(batch):
    clip = partial(losses.ppo_clip, **CLIP)
    grpo = total(batch, clip) + 0.01 * kl_of(batch)
    gspo = total(batch, losses.gspo, clip_low=3e-4, clip_high=4e-4)
    want = {
        "r3l": total(batch, losses.policy_gradient),
        "raft": total(batch, losses.policy_gradient),
        "opmd": total(batch, losses.policy_gradient) / 2,
        "grpo": grpo,
        "reflect_grpo": grpo,
        "dapo": total(batch, losses.ppo_clip, clip_low=0.2, clip_high=0.28),
        "gspo": gspo + 0.01 * kl_of(batch),
        "critique_grpo": total(batch, losses.critique_grpo, attempts=clip, gamma=0.1),
        "rloo": total(batch, losses.policy_gradient),
        "r3": grpo,
        "rlvmr": grpo,
        "arpo": total(batch, losses.ppo_clip, clip_low=0.2, clip_high=0.3),
        "spear": total(batch, clip),
        "early_experience": total(batch, clip),
    }
    for name in NAMES:
        algorithm = get(name)
        got, parts = algorithm.loss(batch)
        assert got.item() == pytest.approx(want[name], rel=1e-12), name
        assert ("kl_reference" in parts) == algorithm.needs_reference
        assert all(type(value) is float for value in parts.values())


def gradient(batch, algorithm):
    lp = batch.logprobs_BT.detach().clone().requires_grad_(True)
    algorithm.loss(replace(batch, logprobs_BT=lp))[0].backward()
    return lp.grad


@pytest.mark.parametrize("name", ["reflect_grpo", "grpo", "gspo", "dapo", "r3l"])
def test_the_gradient_of_a_distilled_row_is_the_policy_gradients_at_the_first_update(batch, name):
    """Whatever the log-probabilities stored with it, which were sampled under guidance."""
    algorithm = get(name, kl_coef=0, **({"clipped": True} if name == "r3l" else {}))
    got, want = gradient(batch, algorithm), gradient(batch, get("raft"))
    assert want[2:].any() and torch.allclose(got[2:], want[2:], rtol=1e-12)
    assert not torch.allclose(got[:2], want[:2], rtol=0.1)
    _, parts = algorithm.loss(replace(batch, advantages_B=batch.advantages_B * batch.distilled_B))
    assert parts["clip_fraction"] == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_parts_of_micro_batches_add_up(batch, name):
    algorithm = get(name)
    whole, parts = algorithm.loss(batch)
    halves = [
        algorithm.loss(
            replace(batch, **{k: v[rows] for k, v in vars(batch).items() if v is not None})
        )
        for rows in (slice(0, 1), slice(1, 4))
    ]
    assert sum(value for value, _ in halves).item() == pytest.approx(whole.item(), rel=1e-12)
    for key, value in parts.items():
        assert sum(half[key] for _, half in halves) == pytest.approx(value, rel=1e-12)


def test_a_missing_reference_is_named(batch):
    alone = replace(batch, ref_logprobs_BT=None)
    with pytest.raises(ValueError, match="needs the reference"):
        get("grpo").loss(alone)
    get("r3l").loss(alone)


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_can_be_sent_to_another_process(name):
    assert pickle.loads(pickle.dumps(get(name))).plan() == get(name).plan()

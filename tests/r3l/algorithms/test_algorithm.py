"""What every algorithm promises: finite advantages, losses that add up, named errors."""

import asyncio
import math
import pickle
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest
import torch

from r3l.algorithms import losses
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.published.grpo import GRPO
from r3l.errors import UserError
from r3l.records import GroupPlan
from r3l.rollout.exploration import Exploration
from tests.r3l.algorithms.fakes import (
    NAMES,
    TASK,
    advantages_of,
    batch_of,
    facts_of,
    get,
    group_of,
    kl_of,
    loss_of,
    planned,
    random_source,
    total,
)
from tests.r3l.fakes import Corridor, ScriptedPolicy


@pytest.mark.parametrize(
    ("name", "slots"),
    [(name, {"reflect_grpo": 12, "critique_grpo": 16}.get(name, 8)) for name in NAMES],
)
def test_each_algorithm_has_the_group_plan_of_the_paper(name, slots):
    assert planned(get(name)) == GroupPlan(slots)


def test_only_baselines_with_a_kl_need_a_reference(make_trajectory):
    with_kl = {"grpo", "gspo", "reflect_grpo", "r3", "rlvmr"}
    assert {n for n in NAMES if "reference" in get(n).needs} == with_kl
    taught = {"sdpo", "rlsd", "forward_kl"}
    assert {n for n in NAMES if "averaged" in get(n).needs} == taught
    attempts = [make_trajectory(slot=i, reward=float(i)) for i in range(2)]
    assert {n for n in NAMES if get(n).queries(batch_of(attempts))} == with_kl
    assert {n for n in NAMES if getattr(get(n), "sft_weight", 0)} == {"r3l", "early_experience"}
    assert {n for n in NAMES if get(n).normalize == "token"} == {"dapo"}


def test_the_baseline_masks_keep_every_response_token(group):
    for name in set(NAMES) - {"r3l", "rltf", "hill"}:
        assert [int(m.sum()) for m in get(name).masks(group())] == [5] * 6


@pytest.mark.parametrize("name", NAMES)
def test_a_group_of_one_has_finite_advantages(name, make_trajectory):
    for reward in (-1.0, 0.0, 0.5, 1.0):
        values, keep = advantages_of(get(name), [make_trajectory(reward=reward)])
        assert np.isfinite(values).all() and values.dtype == np.float64
        assert keep.dtype == np.bool_


@pytest.mark.parametrize("name", NAMES)
def test_a_group_without_attempts_has_no_advantages_and_no_rows(name):
    algorithm, batch = get(name), batch_of([])
    assert [len(values) for values in algorithm.advantages(batch)] == [0]
    assert algorithm.rows(batch) == [] and not algorithm.queries(batch)


@pytest.mark.parametrize("name", NAMES)
def test_retries_whose_attempts_are_absent_have_finite_advantages(name, make_trajectory):
    alone = [make_trajectory(slot=2 + i, of=i, pivot=0, reward=float(i)) for i in range(2)]
    values, _ = advantages_of(get(name), alone)
    assert np.isfinite(values).all()


@pytest.mark.parametrize("name", NAMES)
def test_bad_rewards_are_refused(name, make_trajectory):
    for reward in (math.nan, math.inf):
        one = make_trajectory()
        msgspec.structs.force_setattr(one, "reward", reward)  # a record refuses it by itself
        with pytest.raises(ValueError, match="rewards are"):
            advantages_of(get(name), [one])


@pytest.mark.parametrize("wrong", [0.5, [0.5], [0.5, math.nan]])
def test_each_reward_must_get_a_finite_advantage(wrong, make_trajectory):
    class Wrong(GRPO):
        def weigh(self, rewards, attempts, recalled=0):
            return np.array(wrong)

    attempts = [make_trajectory(slot=i, reward=float(i)) for i in range(2)]
    for recalled in (0, 1):
        for method in (Wrong().rows, Wrong().queries):
            with pytest.raises(UserError, match="one finite number for each attempt"):
                method(batch_of(attempts, recalled))


@pytest.mark.parametrize("wrong", [[], [[True] * 8], [[True] * 8, [True] * 7]])
def test_each_attempt_must_get_a_mask_of_its_length(wrong, make_trajectory):
    class Wrong(GRPO):
        def masks(self, attempts):
            return [np.array(mask) for mask in wrong]

    attempts = [make_trajectory([2, 1], slot=i, reward=float(i)) for i in range(2)]
    with pytest.raises(UserError, match=r"masks of shapes .* tokens; return one mask for each"):
        Wrong().rows(batch_of(attempts))


def test_each_group_must_get_its_advantages(make_trajectory):
    class Wrong(GRPO):
        def advantages(self, batch):
            return []

    with pytest.raises(UserError, match="advantages for 0 groups, but the batch has 1"):
        Wrong().rows(batch_of([make_trajectory()]))


CLIP = {"clip_low": 0.2, "clip_high": 0.2}
SDPO = {"loss": losses.policy_gradient, "rule": "token_truncate", "low": 0.5, "high": 2.0}


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
        "prefix_rl": total(batch, clip),
        "pope": total(batch, clip),
        "exit": total(batch, clip),
        "restart_from_success": total(batch, clip),
        "rltf": total(batch, losses.policy_gradient),
        "hill": total(batch, clip),
        "sdpo": total(batch, partial(losses.ratio_corrected, **SDPO)),
        "rlsd": total(batch, clip),
        "forward_kl": total(batch, clip),
    }
    for name in NAMES:
        algorithm = get(name)
        got, measured = loss_of(algorithm, batch)
        assert got.item() == pytest.approx(want[name], rel=1e-12), name
        assert measured["loss_penalized"] == got.item()
        assert ("kl_reference" in measured) == ("reference" in algorithm.needs)
        assert all(type(value) is float for value in measured.values())


def gradient(batch, algorithm):
    lp = batch.logprobs_BT.detach().clone().requires_grad_(True)
    loss_of(algorithm, replace(batch, logprobs_BT=lp))[0].backward()
    return lp.grad


@pytest.mark.parametrize("name", ["reflect_grpo", "grpo", "gspo", "dapo", "r3l"])
def test_the_gradient_of_a_distilled_row_is_the_policy_gradients_at_the_first_update(batch, name):
    """Whatever the log-probabilities stored with it, which were sampled under guidance."""
    algorithm = get(name, kl_coef=0, **({"clipped": True} if name == "r3l" else {}))
    got, want = gradient(batch, algorithm), gradient(batch, get("raft"))
    assert want[2:].any() and torch.allclose(got[2:], want[2:], rtol=1e-12)
    assert not torch.allclose(got[:2], want[:2], rtol=0.1)
    only = batch.advantages_BT * batch.distilled_B[:, None]
    _, measured = loss_of(algorithm, replace(batch, advantages_BT=only))
    assert measured["clip_fraction"] == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_measurements_of_micro_batches_add_up(batch, name):
    batch = replace(batch, losses=("policy", "sft", "policy", "policy"))
    algorithm = get(name)
    whole, measured = loss_of(algorithm, batch)

    def part(rows):
        own = {k: v[rows] for k, v in vars(batch).items() if k != "measured"}
        return loss_of(algorithm, replace(batch, **own))

    halves = [part(slice(0, 1)), part(slice(1, 4))]
    assert sum(value for value, _ in halves).item() == pytest.approx(whole.item(), rel=1e-12)
    for key, value in measured.items():
        assert sum(half[key] for _, half in halves) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_supervised_rows_are_no_part_of_the_policys_loss(batch, name):
    mixed = replace(batch, losses=("policy", "sft", "sft", "policy"))
    alone = replace(batch, mask_BT=batch.mask_BT & torch.tensor([[True], [False], [False], [True]]))
    parts, want = get(name).loss(mixed), get(name).loss(alone)
    assert parts["policy"].item() == want["policy"].item() and ("kl" in parts) == ("kl" in want)
    assert ("sft" in parts) == (name in ("r3l", "early_experience"))


def test_a_missing_reference_is_named(batch):
    alone = replace(batch, reference_BT=None)
    with pytest.raises(ValueError, match="needs the reference"):
        get("grpo").loss(alone)
    get("r3l").loss(alone)


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_can_be_sent_to_another_process(name):
    assert pickle.loads(pickle.dumps(get(name))) == get(name)


# -- the defaults: a whole algorithm is a class without methods ------------------------------


def test_the_base_plays_n_attempts_and_learns_from_their_distance_to_the_mean(make_trajectory):
    algorithm = Algorithm(group_size=3)
    assert planned(algorithm) == GroupPlan(3)
    assert algorithm.admits(facts_of((0.0, 0.0))) == "" and not algorithm.replaces_groups
    assert not algorithm.recalls(facts_of((0.0,)), (), random_source)
    attempts = [make_trajectory(slot=i, reward=r) for i, r in enumerate((1.0, 0.0, 0.5))]
    batch = batch_of(attempts)
    assert not algorithm.queries(batch) and not algorithm.needs
    won, lost = algorithm.rows(batch)  # the third has advantage 0, but counts
    assert set(won.advantages.tolist()) == {0.5} and set(lost.advantages.tolist()) == {-0.5}
    assert won.weights[won.mask].sum() == pytest.approx(1 / 3)


def test_the_base_explores_every_slot_of_the_plan_at_the_same_time():
    policy = ScriptedPolicy(lambda prompt: "abc"[int(prompt.rpartition("door ")[2][0])])
    x = Exploration(TASK, policy, Corridor, GroupPlan(3))
    asyncio.run(Algorithm.explore(Algorithm(), x))
    assert [(t.slot, t.of, t.reward) for t in x.attempts] == [
        (0, -1, 1.0),
        (1, -1, 1.0),
        (2, -1, 1.0),
    ]


def test_an_evaluation_explores_as_the_base_does_whatever_the_algorithm():
    policy = ScriptedPolicy(lambda prompt: "x")
    x = Exploration(TASK, policy, Corridor, GroupPlan(2))
    asyncio.run(Algorithm.explore(get("r3l"), x))
    assert [t.of for t in x.attempts] == [-1, -1] and not x.reflections


def test_masks_of_recalled_attempts_are_their_own(make_trajectory):
    base = make_trajectory(slot=0)
    foreign = make_trajectory(slot=2, of=0, pivot=1)
    [[own, recalled]] = get().credit_masks(batch_of([base, foreign], recalled=1))
    assert own.sum() == base.response_mask.sum() > recalled.sum()
    [[retried, _]] = get().credit_masks(batch_of([base, foreign]))
    assert retried.sum() != own.sum()  # a retry of its own masks it


def test_an_error_of_a_users_admits_is_one_line():
    class Broken(Algorithm):
        def admits(self, group):
            raise KeyError("pass@8\nof the group")

    with pytest.raises(UserError, match=r"algorithm mine\.py:Broken: admits raised KeyError") as e:
        _ = Broken(name="mine.py:Broken").replaces_groups
    assert "\n" not in str(e.value)


def test_rows_of_several_groups_are_one_mean(make_trajectory):
    groups = [
        group_of([make_trajectory(slot=i, reward=float(i)) for i in range(n)], name=f"g{n}")
        for n in (2, 3)
    ]
    one, three = get("rloo", normalize="sum"), get("rloo", normalize="group")
    batch = replace(batch_of([]), groups=groups, weights=(1.0, 0.5))
    assert [row.weights[0] for row in one.rows(batch)] == pytest.approx([0.2] * 2 + [0.1] * 2)
    assert [row.weights[0] * 5 for row in three.rows(batch)] == pytest.approx(
        [1 / 4] * 2 + [1 / 12] * 2
    )

"""R³L: its settings and what each ablation changes."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from r3l.algorithms import losses
from r3l.algorithms.algorithm import Exploration
from r3l.records import GroupPlan
from r3l.run.config import load
from tests.r3l.algorithms.fakes import advantages_of, get, kl_of, total


def test_r3l_explores_by_its_settings():
    plain = get().exploration
    assert plain == Exploration(4, 4, aux=True)
    assert not plain.from_start
    assert plain.reflect_on == "all"
    assert get(reflect_on="failures").exploration == replace(plain, reflect_on="failures")
    assert get(from_start=True).exploration.from_start
    assert get(guidance=False).exploration.guidance == "none"
    assert not get(constrained_reflection=False).exploration.constrained
    assert not get(verified_requires_success=False).exploration.verified_requires_success
    assert get(outcome_first=True).exploration == replace(plain, outcome_first=True)
    assert get(praise=False).exploration == replace(plain, praise=False)


def test_without_reflection_there_are_only_base_attempts():
    ablated = get(reflect=False)
    assert ablated.plan() == GroupPlan(8)
    assert ablated.sft_weight == 0.0
    assert get(reflect=False, group_size=3).plan() == GroupPlan(3)


def test_without_credit_only_the_masks_change(group):
    trajectories = group()
    full = [int(one.response_mask.sum()) for one in trajectories]
    assert [int(m.sum()) for m in get(credit=False).masks(trajectories)] == full == [5] * 6
    assert [int(m.sum()) for m in get().masks(trajectories)] == [3, 5, 3, 5, 3, 3]
    with_credit, _ = advantages_of(get(), trajectories)
    without, _ = advantages_of(get(credit=False), trajectories)
    assert with_credit.tolist() == without.tolist()


def test_amplification_follows_its_settings(group):
    trajectories = group((1.0, 0.0), ((1, 0.5),))
    assert advantages_of(get(amplify=False), trajectories)[0].tolist() == [0.5, -0.5, 0.0]
    assert advantages_of(get(), trajectories)[0].tolist() == [3.0, -0.5, 0.0]
    best = group((0.5, 0.0), ())
    assert advantages_of(get(), best)[0].tolist() == [0.75, -0.25]
    assert advantages_of(get(max_rule="group_max"), best)[0].tolist() == [3.0, -0.25]
    assert advantages_of(get(alpha=2.0, max_advantage=1.0), trajectories)[0][0] == 1.0


def test_the_standard_deviation_can_divide_what_is_amplified(group):
    trajectories = group((1.0, 0.0), ((1, 0.5),))  # s = 1/2, −1/2, 0; σ = 1/√6
    scores = [1.2247449, -1.2247449, 0.0]
    plain, _ = advantages_of(get(std="population", amplify=False), trajectories)
    assert plain == pytest.approx(scores, rel=1e-5, abs=1e-9)
    amplified, _ = advantages_of(get(std="population"), trajectories)
    assert amplified == pytest.approx([3.0, -1.2247449, 0.0], rel=1e-5, abs=1e-9)
    best, _ = advantages_of(get(std="population"), group((0.5, 0.0), ()))
    assert best == pytest.approx([3.0, -1.0], rel=1e-5)  # α·1 and −1


@pytest.mark.parametrize("few", [{"group_size": 2}, {"reflect": False, "group_size": 1}])
def test_one_base_attempt_has_no_standard_deviation(few):
    with pytest.raises(ValidationError, match=r"std population: .*one base attempt"):
        get(std="population", **few)
    assert get(**few).plan().base == 1


def test_the_authors_from_start_and_no_guidance_are_without_credit_as_well(group):
    for name, override in (("from_start", "true"), ("guidance", "false")):
        overrides = [f"algorithm.{name}={override}", "algorithm.credit=false"]
        algorithm = load(None, overrides).algorithm.build()
        assert [int(mask.sum()) for mask in algorithm.masks(group())] == [5] * 6
        assert algorithm.exploration == get(**{name: override == "true"}).exploration


def test_a_kl_and_clipped_ratios_can_be_switched_on(batch):
    plain, k2 = total(batch, losses.policy_gradient), kl_of(batch, losses.k2_kl)
    assert not get().needs_reference
    got, parts = get(kl_coef=0.001).loss(batch)
    assert got.item() == pytest.approx(plain + 0.001 * k2, rel=1e-12)
    assert parts["kl_reference"] == pytest.approx(k2)
    got, parts = get(clipped=True, clip_high=0.5).loss(batch)
    want = total(batch, losses.ppo_clip, clip_low=0.2, clip_high=0.5)
    assert got.item() == want != plain and "clip_fraction" in parts


def test_a_recalled_success_weighs_less_and_the_failures_beside_it_have_contrast(make_trajectory):
    group = [make_trajectory(slot=i, reward=r) for i, r in enumerate((0.0, 0.0, 0.0, 1.0))]
    got, keep = get(recall_count=1).advantages([one.reward for one in group], group, recalled=1)
    assert keep.all() and got.tolist() == [-0.25, -0.25, -0.25, 1.5]  # α/α_off = 3/2


def test_masks_of_recalled_attempts_are_their_own(make_trajectory):
    base = make_trajectory(slot=0)
    foreign = make_trajectory(slot=2, role="distilled", parent=0, pivot=1)
    own, recalled = get().masks([base, foreign], recalled=1)
    assert own.sum() == base.response_mask.sum() > recalled.sum()
    assert get().masks([base, foreign])[0].sum() != own.sum()  # a retry of its own masks it

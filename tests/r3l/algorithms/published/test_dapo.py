"""DAPO trains on groups with contrast."""

import pytest

from r3l.algorithms import losses
from r3l.errors import UserError
from r3l.run.config import load
from tests.r3l.algorithms.fakes import NAMES, advantages_of, facts_of, get, loss_of, total


def test_dapo_drops_groups_without_contrast(group):
    values, keep = advantages_of(get("dapo"), group((1.0, 1.0), ()))
    assert values.tolist() == [0.0, 0.0] and not keep.any()
    values, keep = advantages_of(get("dapo"), group((1.0, 0.0), ()))
    assert keep.all() and values == pytest.approx([1.0, -1.0], rel=1e-5)
    assert advantages_of(get("dapo", filter=False), group((1.0, 1.0), ()))[1].all()


def test_dapo_alone_replaces_groups_without_contrast_and_only_while_it_filters_them():
    flat, mixed = facts_of((0.5, 0.5)), facts_of((0.0, 0.5))
    assert [name for name in NAMES if get(name).admits(flat)] == ["dapo"]
    assert [name for name in NAMES if get(name).replaces_groups] == ["dapo"]
    assert (get("dapo").admits(flat), get("dapo").admits(mixed)) == ("no_contrast", "")
    off = load(None, ["algorithm=dapo", "algorithm.filter=false"]).algorithm
    assert off.admits(flat) == "" and not off.replaces_groups


def test_a_flat_group_that_stored_attempts_joined_is_trained(make_trajectory):
    group = [make_trajectory(slot=i, reward=1.0) for i in range(3)]
    assert advantages_of(get("dapo"), group, recalled=1)[1].all()


def test_dapo_lowers_the_reward_of_overlong_attempts(make_trajectory):
    long, short = (make_trajectory([n], reward=1.0, slot=i) for i, n in enumerate((6, 4)))
    failure = make_trajectory([1], slot=2)
    algorithm = get("dapo", std="none", overlong_limit=8, overlong_buffer=4)
    values, keep = advantages_of(algorithm, [long, short, failure])
    assert keep.all() and values == pytest.approx([0.0, 0.5, -0.5])  # 1 − 2/4, 1, 0
    # contrast is that of the rewards as they were earned
    assert not advantages_of(algorithm, [long, short])[1].any()
    off = get("dapo", std="none", overlong_limit=8, overlong_buffer=0)
    assert advantages_of(off, [long, short, failure])[0] == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    with pytest.raises(UserError, match=r"overlong_buffer 4096 .* overlong_limit 100"):
        load(None, ["algorithm=dapo", "algorithm.overlong_limit=100"])


def test_dapos_clip_is_a_setting_and_a_kl_is_optional(batch):
    clip = {"clip_low": 0.1, "clip_high": 0.5}
    got = loss_of(get("dapo", kl_coef=0, **clip), batch)[0].item()
    assert got == total(batch, losses.ppo_clip, **clip)
    assert get("dapo", kl_coef=0.5).needs == ("reference",)

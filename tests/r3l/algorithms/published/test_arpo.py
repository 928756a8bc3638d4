"""ARPO: a stored success in the place of a failure."""

import pytest

from tests.r3l.algorithms.fakes import advantages_of, facts_of, get, random_source, stored


def test_a_success_replaces_the_worst_attempt_and_the_size_of_the_group_stays(make_trajectory):
    group = [make_trajectory(slot=i, reward=r) for i, r in enumerate((0.0, 0.5, 0.0, 1.0))]
    advantages, keep = advantages_of(get("arpo"), group, recalled=1)
    assert keep.tolist() == [True, True, False, True]
    # 0, 0.5, 1: mean 1/2, std 1/√6
    assert advantages == pytest.approx([-1.2247449, 0.0, 0.0, 1.2247449], rel=1e-5, abs=1e-9)


def test_only_a_group_that_earned_nothing_recalls_and_only_one_success():
    history = [stored(f"g{i}", 1.0) for i in range(4)]
    counts = [
        len(get("arpo").recalls(facts_of(rewards, 5), history, random_source))
        for rewards in ((0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (1.0, 1.0))
    ]
    assert counts == [1, 0, 0, 0]
    assert not get("arpo", recall_age=4).recalls(facts_of((0.0,), 5), history, random_source)


def test_without_a_recalled_attempt_arpo_is_grpo_with_another_clip(make_trajectory):
    group = [make_trajectory(slot=i, reward=r) for i, r in enumerate((0.0, 1.0, 0.25))]
    ours, keep = advantages_of(get("arpo"), group)
    assert keep.all() and ours.tolist() == advantages_of(get("grpo"), group)[0].tolist()


def test_a_group_of_one_is_replaced_whole(make_trajectory):
    group = [make_trajectory(slot=i, reward=float(i)) for i in range(3)]
    _, keep = advantages_of(get("arpo"), group, recalled=2)
    assert keep.tolist() == [False, True, True]


def test_the_ratio_is_clipped_at_0_8_and_1_3():
    settings = get("arpo")
    assert (settings.clip_low, settings.clip_high, settings.kl_coef) == (0.2, 0.3, 0.0)

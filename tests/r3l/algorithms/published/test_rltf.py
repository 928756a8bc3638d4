"""RLTF: plain attempts are the baseline of plain attempts and of retries."""

import numpy as np
import pytest

from r3l.algorithms.facts import GroupFacts
from r3l.errors import UserError
from tests.r3l.algorithms.fakes import advantages_of, get, planned


def test_the_advantages_of_a_group_in_literal_numbers(group):
    attempts = group((0.0, 1.0, 0.5, 0.0), ((0, 1.0), (2, 0.25)))
    values, keep = advantages_of(get("rltf"), attempts)
    # The plain attempts' mean is 0.375; the mean of the others is 0.5, 1/6, 1/3, 0.5.
    assert keep.all()
    assert values == pytest.approx([-0.5, 5 / 6, 1 / 6, -0.5, 0.625, -0.125])


def test_retries_change_no_plain_attempts_advantage(group):
    plain, _ = advantages_of(get("rltf"), group(retry_rewards=()))
    values, _ = advantages_of(get("rltf"), group(retry_rewards=((0, 1.0), (2, 1.0), (3, 1.0))))
    assert values[:4].tolist() == plain.tolist() and (values[4:] == 0.625).all()


def test_a_single_plain_attempt_has_no_advantage_and_its_retry_has_the_difference(group):
    values, _ = advantages_of(get("rltf"), group((0.25,), ((0, 1.0),)))
    assert values.tolist() == [0.0, 0.75]


def test_a_group_of_retries_alone_is_replaced_with_its_cause_and_never_trained(group):
    algorithm = get("rltf")
    facts = [GroupFacts("t", (1.0, 0.0), of) for of in ((0, 1), (-1, 0))]
    assert [algorithm.admits(each) for each in facts] == ["no_plain_attempt", ""]
    assert algorithm.admits(GroupFacts("t", ())) == "" and not algorithm.replaces_groups
    values, keep = advantages_of(algorithm, group()[4:])
    assert not keep.any() and values.tolist() == [0.0, 0.0]


def test_a_recalled_attempt_is_no_part_of_the_baseline(group, make_trajectory):
    attempts = [*group((0.0, 1.0), ()), make_trajectory(slot=5, reward=1.0)]
    values, _ = advantages_of(get("rltf"), attempts, recalled=1)
    assert values.tolist() == [-1.0, 1.0, 0.5]


def test_only_failures_are_retried_and_trained_from_the_pivot_on(group, make_trajectory):
    algorithm = get("rltf")
    assert planned(algorithm).slots == 8 and len(algorithm.retries(8)) == 4
    assert algorithm.reflects_on(make_trajectory(reward=0.9))
    assert not algorithm.reflects_on(make_trajectory(reward=1.0))
    assert [int(np.sum(mask)) for mask in algorithm.masks(group())] == [3, 5, 3, 5, 3, 3]


def test_a_deviation_is_refused():
    with pytest.raises(UserError, match="std"):
        get("rltf", std="population")


def test_a_retry_with_the_reward_of_all_plain_attempts_has_exactly_no_advantage(group):
    values, _ = advantages_of(get("rltf"), group((0.1, 0.1, 0.1), ((0, 0.1), (1, 0.4))))
    assert values.tolist() == [0.0, 0.0, 0.0, 0.0, 0.4 - 0.1]  # the mean of numpy is 0.1 + 1.4e-17

"""Reflect-GRPO trains on attempts and retries alike."""

import pytest

from tests.r3l.algorithms.fakes import advantages_of, get, planned, thought_about


def test_reflect_grpo_standardises_the_mixed_group(group):
    values, keep = advantages_of(get("reflect_grpo"), group((0.0, 0.0), ((0, 1.0), (1, 1.0))))
    assert keep.all() and values == pytest.approx([-1, -1, 1, 1], rel=1e-5)


@pytest.mark.parametrize(
    ("size", "retries"),
    [
        (4, {0: [4], 1: [5], 2: [], 3: []}),
        (3, {0: [3], 1: [], 2: []}),
        (1, {0: []}),
    ],
)
def test_the_first_half_of_the_attempts_may_be_retried(size, retries):
    algorithm = get("reflect_grpo", group_size=size, std="none")
    slots = planned(algorithm).slots
    assert slots == size + size // 2
    assert {i: list(again) for i, again in algorithm.retries(slots).items()} == retries


def test_only_failures_are_reflected_on_and_retried_from_the_start(make_trajectory):
    algorithm = get("reflect_grpo")
    assert not algorithm.reflects_on(make_trajectory(reward=1.0))
    failure = make_trajectory(reward=0.9)
    assert algorithm.reflects_on(failure)
    assert algorithm.pivot_of(thought_about(0, pivot=1), failure) == 0
    assert algorithm.answer_schema(failure)
    assert get("reflect_grpo", constrained_reflection=False).answer_schema(failure) is None

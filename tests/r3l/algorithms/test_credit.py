"""Pivot masks against their definition written out token by token."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l.algorithms.credit import (
    Normalize,
    by_step,
    further_masks,
    group_masks,
    lengths,
    token_weights,
)
from r3l.records import Extra, Origin, Segment

step_lengths = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def by_definition(trajectory, pivot):
    """One token at a time: 1 for response tokens of steps >= k*, 0 for everything else."""
    mask = []
    for t in range(len(trajectory.token_ids)):
        step = [k for k, (a, b) in enumerate(trajectory.step_spans) if a <= t < b]
        mask.append(bool(step) and step[0] >= pivot)
    return mask


def test_mask_literal_numbers(make_trajectory):
    one = make_trajectory([2, 1, 2], prompt=2, observation=1)
    assert one.responses_from(-1).astype(int).tolist() == [0, 0, 1, 1, 0, 1, 0, 1, 1]
    assert one.responses_from(0).astype(int).tolist() == [0, 0, 1, 1, 0, 1, 0, 1, 1]
    assert one.responses_from(1).astype(int).tolist() == [0, 0, 0, 0, 0, 1, 0, 1, 1]
    assert one.responses_from(2).astype(int).tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1]


@given(steps=step_lengths, data=st.data())
def test_the_pivot_mask_keeps_the_tokens_from_the_pivot_on(make_trajectory, steps, data):
    pivot = data.draw(st.integers(-1, len(steps) - 1))
    one = make_trajectory(steps)
    mask = one.responses_from(pivot)
    assert mask.dtype == np.bool_
    assert mask.tolist() == by_definition(one, pivot)
    assert not (mask & ~one.response_mask).any()


@given(
    prefix=step_lengths,
    base_rest=step_lengths,
    retry_rest=step_lengths,
    data=st.data(),
)
def test_base_and_distilled_agree_on_the_shared_prefix(
    make_trajectory, prefix, base_rest, retry_rest, data
):
    pivot = len(prefix)
    base = make_trajectory([*prefix, *base_rest], slot=3)
    distilled = make_trajectory([*prefix, *retry_rest], slot=4, of=3, pivot=pivot)
    other = make_trajectory([2, 2], slot=1)
    order = data.draw(st.permutations([base, distilled, other]))
    masks = dict(zip(map(id, order), group_masks(order), strict=True))
    shared = base.step_spans[pivot, 0]
    assert shared == distilled.step_spans[pivot, 0]
    assert not masks[id(base)][:shared].any() and not masks[id(distilled)][:shared].any()
    assert masks[id(base)].tolist() == by_definition(base, pivot)
    assert masks[id(distilled)].tolist() == by_definition(distilled, pivot)
    assert masks[id(other)].tolist() == other.response_mask.tolist()


def test_a_retry_from_the_last_step_keeps_only_that_step(make_trajectory):
    base = make_trajectory([2, 2, 3])
    child = make_trajectory([2, 2, 1, 4], slot=1, of=0, pivot=2)
    base_mask, child_mask = group_masks([base, child])
    assert np.flatnonzero(base_mask).tolist() == list(range(*base.step_spans[2]))
    assert base_mask.sum() == 3 and child_mask.sum() == 5


def test_attempts_of_one_step_keep_every_response_token(make_trajectory):
    base = make_trajectory([4])
    child = make_trajectory([2], slot=1, of=0, pivot=0)
    for one, mask in zip([base, child], group_masks([base, child]), strict=True):
        assert mask.tolist() == one.response_mask.tolist()


def test_without_credit_every_response_token_is_kept(make_trajectory):
    base = make_trajectory([2, 2, 3])
    child = make_trajectory([2, 2, 1], slot=1, of=0, pivot=2)
    for one, mask in zip([base, child], group_masks([base, child], mask_prefix=False), strict=True):
        assert mask.tolist() == one.response_mask.tolist()


def test_a_distilled_attempt_whose_base_is_absent_keeps_its_own_pivot(make_trajectory):
    child = make_trajectory([2, 2], slot=6, of=5, pivot=1)
    other = make_trajectory([2, 2], slot=0)
    masks = group_masks([other, child])
    assert masks[0].sum() == 4 and masks[1].sum() == 2
    assert group_masks([]) == []


def first_steps(trajectories, **more):
    """The first step of each attempt that gets credit."""
    masks = group_masks(trajectories, **more)
    return [
        int(np.searchsorted(one.step_spans[:, 1], mask.argmax(), side="right"))
        for one, mask in zip(trajectories, masks, strict=True)
    ]


@given(pivots=st.lists(st.integers(0, 3), min_size=1, max_size=4), data=st.data())
def test_an_attempt_with_several_retries_gets_credit_from_their_earliest_pivot(
    make_trajectory, pivots, data
):
    base = make_trajectory([1, 2, 1, 2], slot=0)
    retries = [
        make_trajectory([1, 2, 1, 1], slot=1 + i, of=0, pivot=pivot)
        for i, pivot in enumerate(pivots)
    ]
    order = data.draw(st.permutations([base, *retries]))
    found = dict(zip((one.slot for one in order), first_steps(order), strict=True))
    assert found == {0: min(pivots), **{1 + i: pivot for i, pivot in enumerate(pivots)}}
    assert set(first_steps(order, mask_prefix=False)) == {0}


def test_a_retry_of_a_retry_gets_credit_from_its_own_pivot(make_trajectory):
    base = make_trajectory([1] * 4, slot=0)
    first = make_trajectory([1] * 4, slot=1, of=0, pivot=1)
    second = make_trajectory([1] * 4, slot=2, of=1, pivot=2)
    assert first_steps([base, first, second]) == [1, 1, 2]


def test_steps_that_another_groups_attempt_played_get_no_credit(make_trajectory):
    begun = make_trajectory([1] * 3, slot=0, pivot=2, origin=Origin("g7", 3, 2))
    assert first_steps([begun]) == first_steps([begun], mask_prefix=False) == [2]


def segment(steps, start=0, after=()):
    """A further conversation: a token before each step of one token."""
    spans = np.array([[2 * k + 1, 2 * k + 2] for k in range(steps)], np.int32)
    numbers = np.zeros(steps, np.int32)
    return Segment(
        np.arange(2 * steps, dtype=np.int32),
        np.zeros(2 * steps, np.float32),
        spans,
        numbers,
        numbers,
        start,
        np.array(after, np.int32),
    )


def steps_of(masks):
    """The steps in masks of `segment`."""
    return [(np.flatnonzero(mask) // 2).tolist() for mask in masks]


def test_a_retried_attempts_further_conversations_get_credit_from_the_pivot_on(make_trajectory):
    extra = Extra(segments=(segment(3, after=(0, 1, 2)), segment(2, start=1)))
    base = make_trajectory([1] * 3, slot=0, extra=extra)
    retry = make_trajectory([1] * 3, slot=1, of=0, pivot=1, extra=extra)
    own, again = group_masks([base, retry])
    assert steps_of(further_masks(base, own)) == [[2], [1]]  # two steps came before the pivot
    assert steps_of(further_masks(retry, again)) == [[0, 1, 2], [1]]
    assert steps_of(further_masks(base, base.response_mask)) == [[0, 1, 2], [1]]
    assert further_masks(make_trajectory(), own) == []
    assert lengths("trajectory", [base, retry], [own, again]) == [2 + 2, 2 + 4]


def test_a_retry_may_have_shorter_conversations_beside_its_main_one(make_trajectory):
    retry = make_trajectory([1] * 3, of=0, pivot=2, slot=1, extra=Extra(segments=(segment(1),)))
    assert steps_of(further_masks(retry, group_masks([retry])[0])) == [[0]]


def test_every_token_of_a_step_has_its_value(make_trajectory):
    one = make_trajectory([2, 1], prompt=1, observation=1)
    assert by_step([0.5, -2.0], one).tolist() == [0.0, 0.5, 0.5, 0.0, -2.0]
    with pytest.raises(ValueError, match=r"shape \(1,\); they must be \[2\]"):
        by_step([0.5], one)


def test_token_weights_literal_numbers():
    assert token_weights("trajectory", [4, 0, 2]) == [1 / 12, 0.0, 1 / 6]
    assert token_weights("token", [4, 0, 2]) == [1 / 6] * 3
    assert token_weights("attempt", [4, 0, 2]) == [1 / 12, 0.0, 1 / 6]
    assert token_weights("sum", [4, 0, 2]) == [1 / 3] * 3
    assert token_weights("group", [4, 0, 2], ["a", "a", "b"]) == [1 / 16, 0.0, 1 / 4]
    assert all(token_weights(normalize, []) == [] for normalize in get_args(Normalize))
    assert token_weights("token", [0]) == [1.0]


def test_the_length_of_an_attempt_counts_what_the_pivot_masks(make_trajectory):
    retry = make_trajectory([2, 2, 1], slot=1, of=0, pivot=2)
    masks = group_masks([retry])
    counted = {name: lengths(name, [retry], masks) for name in get_args(Normalize)}
    assert counted == {
        "trajectory": [1],
        "attempt": [5],
        "group": [5],
        "token": [1],
        "sum": [1],
    }

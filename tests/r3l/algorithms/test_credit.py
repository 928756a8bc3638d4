"""Pivot masks against their definition written out token by token."""

from typing import get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from r3l.algorithms.credit import Normalize, group_masks, lengths, token_weights

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
    distilled = make_trajectory(
        [*prefix, *retry_rest], role="distilled", slot=3, parent=3, pivot=pivot
    )
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
    child = make_trajectory([2, 2, 1, 4], role="distilled", parent=0, pivot=2)
    base_mask, child_mask = group_masks([base, child])
    assert np.flatnonzero(base_mask).tolist() == list(range(*base.step_spans[2]))
    assert base_mask.sum() == 3 and child_mask.sum() == 5


def test_attempts_of_one_step_keep_every_response_token(make_trajectory):
    base = make_trajectory([4])
    child = make_trajectory([2], role="distilled", parent=0, pivot=0)
    for one, mask in zip([base, child], group_masks([base, child]), strict=True):
        assert mask.tolist() == one.response_mask.tolist()


def test_without_credit_every_response_token_is_kept(make_trajectory):
    base = make_trajectory([2, 2, 3])
    child = make_trajectory([2, 2, 1], role="distilled", parent=0, pivot=2)
    for one, mask in zip([base, child], group_masks([base, child], mask_prefix=False), strict=True):
        assert mask.tolist() == one.response_mask.tolist()


def test_a_distilled_attempt_whose_base_is_absent_keeps_its_own_pivot(make_trajectory):
    child = make_trajectory([2, 2], role="distilled", parent=5, pivot=1)
    other = make_trajectory([2, 2], slot=0)
    masks = group_masks([other, child])
    assert masks[0].sum() == 4 and masks[1].sum() == 2
    assert group_masks([]) == []


def test_token_weights_literal_numbers():
    assert token_weights("trajectory", [4, 0, 2]) == [1 / 12, 0.0, 1 / 6]
    assert token_weights("token", [4, 0, 2]) == [1 / 6] * 3
    assert token_weights("attempt", [4, 0, 2]) == [1 / 12, 0.0, 1 / 6]
    assert token_weights("sum", [4, 0, 2]) == [1 / 3] * 3
    assert token_weights("group", [4, 0, 2], ["a", "a", "b"]) == [1 / 16, 0.0, 1 / 4]
    assert all(token_weights(normalize, []) == [] for normalize in get_args(Normalize))
    assert token_weights("token", [0]) == [1.0]


def test_the_length_of_an_attempt_counts_what_the_pivot_masks(make_trajectory):
    retry = make_trajectory([2, 2, 1], role="distilled", parent=0, pivot=2)
    masks = group_masks([retry])
    counted = {name: lengths(name, [retry], masks) for name in get_args(Normalize)}
    assert counted == {
        "trajectory": [1],
        "attempt": [5],
        "group": [5],
        "token": [1],
        "sum": [1],
    }

"""Micro-batches: what is in them, and that the cut does not matter."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from r3l.algorithms.rows import IMITATION, POLICY, Row
from r3l.errors import UserError
from r3l.training.micro_batch import check_tokens, collate, micro_batches
from tests.r3l.training.fakes import made_row

CPU = torch.device("cpu")


def row(length: int, first: int = 0) -> Row:
    return made_row(np.arange(first, first + length))


@given(
    st.lists(st.integers(2, 300), max_size=60),
    st.integers(64, 600),
    st.integers(1, 8),
    st.booleans(),
)
def test_every_row_is_in_one_micro_batch_within_the_budget_and_ranks_have_equally_many(
    lengths: list[int], budget: int, ranks: int, shared: bool
) -> None:
    share = micro_batches([row(n) for n in lengths], budget, ranks, shared=shared)
    assert len({len(mine) for mine in share}) == 1 and len(share) == ranks
    bins = [one for mine in share for one in mine]
    assert sorted(len(r.token_ids) for b in bins for r in b) == sorted(lengths)
    for one in bins:
        width = max((len(r.token_ids) for r in one), default=0)
        computed = width if shared else len(one) * width  # these rows are prefixes of the longest
        assert computed <= budget or len(one) <= 1


@pytest.mark.parametrize("shared", [False, True])
def test_padding_stays_under_a_tenth_and_ranks_differ_little_on_mixed_lengths(
    shared: bool,
) -> None:
    rng = np.random.default_rng(0)
    rows = [row(int(n), seed) for seed, n in enumerate(rng.integers(100, 2000, 128))]
    share = micro_batches(rows, 8192, 4, shared=shared)
    sizes = [
        [
            sum(len(r.token_ids) for r in one)
            if shared
            else len(one) * max(len(r.token_ids) for r in one)
            for one in mine
            if one
        ]
        for mine in share
    ]
    held = sum(len(r.token_ids) for r in rows)
    assert 1 - held / sum(map(sum, sizes)) <= 0.1
    assert max(map(sum, sizes)) <= 1.1 * sum(map(sum, sizes)) / len(sizes)


def test_a_group_too_big_for_the_budget_is_cut_where_its_rows_share_least() -> None:
    trunks = [np.arange(100) * 2, np.arange(100) * 2 + 1]
    rows = [made_row(np.append(trunk, [k] * 10)) for k in range(5) for trunk in trunks]
    [mine] = micro_batches(rows, 200, 1, shared=True)
    for part in mine:
        assert len(part) == 5 and len({int(r.token_ids[1]) for r in part}) == 1


def test_a_micro_batch_has_every_field_of_its_rows_and_nothing_in_the_padding() -> None:
    ids = np.arange(3, 8)
    short = made_row(ids[:3], old=[0, -1, -2], advantage=[0, 0.5, -1], weight=0.1, reused=True)
    heard = made_row(
        ids, [0, 1, 0, 0, 1], old=-3.0, reference=np.full(5, -4, np.float32), distilled=True,
        fresh=np.array([0, 1, 0, 0, 0], np.bool_), loss=IMITATION, temperature=0.7,
    )  # fmt: skip
    micro = collate([short, heard], CPU)
    assert micro.nodes.paths_BT.tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]]
    assert micro.mask_BT.tolist() == [[False, True, True, False, False], heard.mask.tolist()]
    assert micro.old_logprobs_BT.tolist() == [[0, -1, -2, 0, 0], [-3] * 5]
    assert micro.advantages_BT.tolist() == [[0, 0.5, -1, 0, 0], [0] * 5]
    assert micro.weights_BT[0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0, 0])
    assert micro.losses == (POLICY, IMITATION)
    assert (micro.distilled_B.tolist(), micro.reused_B.tolist()) == ([False, True], [True, False])
    assert micro.temperatures_B.tolist() == pytest.approx([1.0, 0.7])
    assert micro.fresh_BT.nonzero().tolist() == [[1, 1]]
    assert micro.reference_BT is not None and micro.reference_BT[1].tolist() == [-4.0] * 5
    assert micro.reference_BT[0].isnan().all(), "a row without one must not pass for one"
    assert micro.input_tokens == 8


def test_a_reference_is_there_if_any_row_of_the_step_has_one() -> None:
    assert collate([row(3)], CPU).reference_BT is None
    alone = collate([row(3)], CPU, referenced=True).reference_BT
    assert alone is not None and alone.isnan().all()


def test_a_micro_batch_without_rows_trains_nothing() -> None:
    empty = collate([], CPU)
    assert empty.mask_BT.sum() == 0 and empty.input_tokens == 0
    assert micro_batches([made_row([])], 64, 2, shared=True) == [[[]], [[]]]


def test_a_first_token_cannot_be_trained() -> None:
    with pytest.raises(UserError, match="first token, which nothing predicts"):
        collate([made_row([3, 4], [True, True])], CPU)


def test_padding_is_at_most_a_tenth_on_mixed_lengths_and_ranks_are_balanced() -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6.0, 0.7, 600), 16, 4000).astype(int)
    rows = [row(int(n)) for n in lengths]
    for ranks in (1, 2, 8):
        share = micro_batches(rows, 8192, ranks, shared=False)
        assert len({len(mine) for mine in share}) == 1
        sizes = [[len(b) * max(len(r.token_ids) for r in b) for b in mine if b] for mine in share]
        area = sum(map(sum, sizes))
        assert 1 - lengths.sum() / area <= 0.1
        assert max(map(sum, sizes)) <= 1.1 * area / ranks
        assert all(mine == sorted(mine, reverse=True) for mine in sizes)


def test_tokens_outside_the_vocabulary_are_refused_by_name() -> None:
    ids = np.array([3, 8, 5], np.int32)
    check_tokens([("group g7", ids), ("nothing", ids[:0])], 9)
    with pytest.raises(UserError, match=r"group g7: holds token 8, .*ends at 7"):
        check_tokens([("group g7", ids)], 8)

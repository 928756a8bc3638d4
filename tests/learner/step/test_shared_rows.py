"""The rows that a rank is sent make the micro-batch that rank 0's own rows would make."""

import json
import os
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.step.process_group import join_process_group
from learner.step.shared_rows import SharedRows, broadcast_facts, read_rows, written
from r3l.algorithms.r3l import R3L
from r3l.algorithms.rows import Row
from r3l.training.answers import Found
from r3l.training.micro_batch import MicroBatch, Nodes, collate, micro_batches
from tests.learner.ranks import on_two_ranks
from tests.r3l.training.fakes import explored, made_row, rows_of

CPU = torch.device("cpu")


def values_of(micro: MicroBatch | Nodes) -> dict[str, Any]:
    """The bits of all tensors, and the rest as it is."""
    found = {each.name: getattr(micro, each.name) for each in fields(micro)}
    return {
        name: values_of(value) if isinstance(value, Nodes) else _bits(value)
        for name, value in found.items()
    }


def _bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    return tuple(map(_bits, value)) if isinstance(value, tuple) else value


def same(rows: list[Row], sent: list[Row]) -> None:
    for referenced in (True, False):
        own, other = (collate(each, CPU, referenced=referenced) for each in (rows, sent))
        assert values_of(own) == values_of(other)


def all_rows() -> list[Row]:
    """Rows of every kind: of attempts and retries, with and without what a row may lack."""
    rows = rows_of(explored(), R3L(group_size=4, sft_share=None))
    chance = np.random.default_rng(0)
    for row in rows[::2]:
        near = chance.normal(size=len(row.token_ids)).astype(np.float32)
        rows.append(replace(row, reference=near, temperature=0.7, fresh=near > 0))
        rows.append(replace(row, reused=True, fresh=row.mask))
    return [*rows, made_row([3, 4, 5], loss="mine", measured=False), made_row([])]


ROWS = all_rows()


@given(st.lists(st.sampled_from(ROWS), max_size=6), st.binary(max_size=9))
def test_a_rank_makes_the_micro_batch_that_rank_0_would_make(rows: list[Row], more: bytes) -> None:
    rows = [row for row in rows if len(row.token_ids)]
    sent = read_rows(memoryview(written(rows) + more))
    same(rows, sent)
    assert [row.retry for row in sent] == [row.retry for row in rows]
    assert not any(row.source for row in sent)


def test_the_rows_hold_each_kind() -> None:
    assert any(row.retry for row in ROWS) and any(row.fresh is not None for row in ROWS)
    assert {row.loss for row in ROWS} > {"policy", "sft"}


def test_numbers_of_other_formats_become_those_of_a_micro_batch() -> None:
    ids, mask = np.arange(3, 8), np.array([0, 1, 1, 0, 1])
    thirds = np.full(5, 1 / 3)
    heat: Any = np.float32(0.7)
    row = Row(ids, mask, thirds, thirds, thirds, temperature=heat)  # type: ignore[arg-type]
    same([row], read_rows(memoryview(written([row]))))


class Part(StrEnum):
    MINE = "mine"


@pytest.mark.parametrize("name", [Part.MINE, np.str_("mine")])
def test_the_name_of_a_loss_may_be_a_member_of_an_enumeration(name: str) -> None:
    [sent] = read_rows(memoryview(written([made_row([3, 4], loss=name)])))
    assert type(sent.loss) is str and sent.loss == "mine"


def share(out: Path) -> None:
    """Writes OUT/<rank>.json: the micro-batches of a rank, and on rank 0 what all found."""
    join_process_group(60)
    rank = int(os.environ["RANK"])
    shared = SharedRows(ROWS if rank == 0 else (), 64, CPU, shared=True)
    turns, found = [], []
    for turn, rows in enumerate(shared):
        turns.append([row.token_ids.tolist() for row in rows])
        count = sum(int(row.mask.sum()) for row in rows)
        numbers = np.full(count, 10.0 * rank + turn, np.float32)
        ids = np.full((count, 2), rank, np.int32)
        own = Found(numbers, numbers + 1, ids, np.repeat(numbers[:, None], 2, 1))
        for whose, each in shared.all_found(turn, 2, None if turn == 1 else own):
            assert len(each.ids_Mk) == sum(int(row.mask.sum()) for row in whose)
            assert (each.entropy_M == each.logprobs_M + 1).all() and each.tops_Mk.shape[1] == 2
            found.append([turn, float(each.logprobs_M[0]), int(each.ids_Mk[0, 1])])
    facts = broadcast_facts({"a": [1, "ö"]} if rank == 0 else None, CPU)
    (out / f"{rank}.json").write_text(json.dumps([turns, found, facts]))


@pytest.mark.system
def test_each_of_two_ranks_gets_its_own_rows_and_rank_0_what_both_found(tmp_path: Path) -> None:
    on_two_ranks(share, tmp_path)
    own, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    plan = micro_batches(ROWS, 64, 2, shared=True)
    for seen, expected in zip((own, other), plan, strict=True):
        assert seen[0] == [[row.token_ids.tolist() for row in rows] for rows in expected]
        assert seen[2] == {"a": [1, "ö"]}
    assert len(own[0]) > 2 and other[1] == []
    held = [
        [turn, 10.0 * rank + turn, rank]
        for turn in range(len(own[0]))
        for rank in range(2)
        if turn != 1 and plan[rank][turn]
    ]
    assert own[1] == held


def test_one_rank_has_all_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    shared = SharedRows(ROWS, 64, CPU, shared=True)
    assert list(shared) == micro_batches(ROWS, 64, 1, shared=True)[0]
    assert len(shared) == len(list(shared))

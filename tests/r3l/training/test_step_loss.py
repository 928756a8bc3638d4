"""The loss of a micro-batch: what an algorithm is given, what it must return, what is measured."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from r3l.algorithms.batch import Batch, Source
from r3l.algorithms.losses import TokenBatch, imitation_loss
from r3l.algorithms.queries import Query
from r3l.algorithms.registry import AnyAlgorithm
from r3l.algorithms.rows import IMITATION, Row
from r3l.errors import UserError
from r3l.training.measures.drift import reliance_of_retries
from r3l.training.micro_batch import collate
from r3l.training.step_loss import (
    AnyTrainer,
    blame,
    is_out_of_memory,
    step_loss,
    step_metrics,
)
from tests.r3l.training.fakes import made_row

LOGPROBS = -0.5


def halved(nodes: Any, select_BT: Tensor, temperatures_B: Tensor) -> tuple[Tensor, Tensor]:
    """A policy for which every token has the log-probability −½ and the entropy 2."""
    weight = torch.tensor(LOGPROBS, requires_grad=True)
    return weight * select_BT, 2.0 * select_BT


def sums_of(rows: list[Row], loss: Any, **more: Any) -> tuple[Tensor, dict[str, float]]:
    return step_loss(collate(rows, torch.device("cpu"), **more), loss, halved, "rows")


def test_the_parts_of_a_loss_are_added_and_what_it_measures_is_summed() -> None:
    def loss(batch: TokenBatch) -> dict[str, Tensor]:
        batch.measure("found", 3)
        return {"one": batch.logprobs_BT.sum(), "two": 10 * batch.logprobs_BT.sum()}

    total, sums = sums_of([made_row([3, 4, 5])], loss)
    assert total.item() == sums["loss"] == pytest.approx(11 * 2 * LOGPROBS)
    assert sums["found"] == 3.0
    total.backward()


def test_a_loss_gets_every_field_of_its_rows() -> None:
    seen: list[TokenBatch] = []

    def loss(batch: TokenBatch) -> dict[str, Tensor]:
        seen.append(batch)
        return {"nothing": 0 * batch.logprobs_BT.sum()}

    row = made_row([3, 4, 5], old=-1.0, advantage=[0, 1, 2], weight=0.25, distilled=True)
    sums_of([row, made_row([3, 6], loss="mine", measured=False)], loss, referenced=True)
    [batch] = seen
    assert batch.advantages_BT.tolist() == [[0, 1, 2], [0, 0, 0]]
    assert batch.weights_BT[0].tolist() == [0.25] * 3 and batch.losses == ("policy", "mine")
    assert batch.distilled_B.tolist() == [True, False]
    assert batch.unmeasured_B is not None and batch.unmeasured_B.tolist() == [False, True]
    assert batch.reference_BT is not None and batch.old_logprobs_BT[0].tolist() == [-1.0] * 3
    assert batch.mask_BT.tolist() == [[False, True, True], [False, True, False]]


def test_a_loop_of_ones_own_makes_the_batch_that_a_trainer_makes() -> None:
    seen: list[TokenBatch] = []

    def loss(batch: TokenBatch) -> dict[str, Tensor]:
        seen.append(batch)
        return {"nothing": 0 * batch.logprobs_BT.sum()}

    known = np.array([0.0, -2.0, -3.0], np.float32)
    rows = [
        made_row([3, 4, 5], old=-1.0, advantage=[0, 1, 2], weight=0.25, distilled=True),
        made_row([3, 6], loss="mine", measured=False),
        replace(made_row([3, 4, 5]), reference=known),
    ]
    sums_of(rows, loss)
    [theirs] = seen
    ours = TokenBatch.of_rows(rows, theirs.logprobs_BT)
    for field in fields(TokenBatch):
        one, other = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(other, Tensor):
            assert one.dtype == other.dtype and torch.allclose(one, other, equal_nan=True)
        else:
            assert one == other, field.name
    assert TokenBatch.of_rows(rows[:2], theirs.logprobs_BT[:2]).reference_BT is None


@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (6,)])
def test_log_probabilities_that_do_not_fit_the_rows_are_refused(shape: tuple[int, ...]) -> None:
    rows = [made_row([3, 4, 5]), made_row([3, 6])]
    with pytest.raises(UserError, match=r"for 2 rows of up to 3 tokens; give one for each"):
        TokenBatch.of_rows(rows, torch.zeros(shape))


def test_drift_is_measured_on_the_rows_of_the_policys_loss_by_their_role() -> None:
    def nothing(batch: TokenBatch) -> dict[str, Tensor]:
        return {"nothing": 0 * batch.logprobs_BT.sum()}

    fresh = np.array([0, 1, 0, 0], np.bool_)
    rows = [
        made_row([3, 4, 5, 6], old=LOGPROBS, fresh=fresh),
        made_row([3, 4], old=LOGPROBS - 1, distilled=True),
        made_row([3, 4], old=LOGPROBS, reused=True),
        made_row([3, 4, 5], loss=IMITATION),
        made_row([3, 4, 5, 6, 7], old=0.0, measured=False),
    ]
    _, sums = sums_of(rows, nothing)
    tokens = {name: sums[f"sum_tokens_{name}"] for name in ("all", "base", "distilled", "reused")}
    assert tokens == {"all": 5, "base": 3, "distilled": 1, "reused": 1}
    assert sums["sum_tokens_fresh"] == 1 and sums["sum_gap_distilled"] == pytest.approx(1.0)
    assert sums["sum_entropy_base"] == 6.0 and sums["sum_input_tokens"] == 16.0


def test_reliance_is_measured_on_retries_and_not_on_other_attempts_that_read_a_context(
    make_trajectory: Any,
) -> None:
    def nothing(batch: TokenBatch) -> dict[str, Tensor]:
        return {"nothing": 0 * batch.logprobs_BT.sum()}

    rows = [
        made_row([3, 4], old=LOGPROBS - gap, distilled=True, source=Source("g", "g", attempt))
        for gap, attempt in ((0.25, make_trajectory(of=0, pivot=0, slot=1)), (3, make_trajectory()))
    ]
    _, sums = sums_of(rows, nothing)
    assert (sums["sum_reliance"], sums["sum_retries"]) == (pytest.approx(0.25), 1.0)
    assert reliance_of_retries(sums) == {("g", "g", 1): pytest.approx(0.25)}
    assert not any("reliance_of" in tag for tag in step_metrics(
        sums, norm=1.0, grad_clip=1.0, seconds=1.0))  # fmt: skip


def test_a_prefix_that_rows_share_is_held_once_where_rows_are_packed_as_trees() -> None:
    rows = [made_row([3, 4, 5, 6]), made_row([3, 4, 5, 7]), made_row([3, 4, 8])]
    held = {}
    for pack in ("rows", "tree"):
        micro = collate(rows, torch.device("cpu"))
        _, sums = step_loss(micro, imitation_loss, halved, pack)  # type: ignore[arg-type]
        metrics = step_metrics(sums, norm=1.0, grad_clip=1.0, seconds=1.0)
        held[pack] = (metrics["learner/trained_tokens"], metrics["learner/held_tokens"])
    assert held == {"rows": (11.0, 11.0), "tree": (11.0, 6.0)}


def test_a_micro_batch_without_rows_is_not_shown_to_the_algorithm() -> None:
    def fails(batch: TokenBatch) -> dict[str, Tensor]:
        raise AssertionError

    total, sums = sums_of([], fails)
    assert sums["loss"] == 0.0 and sums["sum_input_tokens"] == 0.0
    total.backward()  # on a rank that has no more rows


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, r"loss returned \{\}; return named parts, each a tensor of one number"),
        (None, "loss returned None; return named parts"),
        ({"policy": 1.0}, "loss returned 1.0 as its part 'policy'; return"),
        ({"kl": torch.ones(2)}, r"returned a tensor of \(2,\) as its part 'kl'; return"),
    ],
)
def test_a_loss_without_named_scalars_is_refused(parts: Any, said: str) -> None:
    def loss(batch: TokenBatch) -> Mapping[str, Tensor]:
        return parts  # type: ignore[no-any-return]

    with pytest.raises(UserError, match=said):
        sums_of([made_row([3, 4])], loss)


OWN = """
import torch
from r3l.algorithms.algorithm import Algorithm

class Mine(Algorithm):
    def loss(self, batch):
        return {"policy": {}["no such key"]}

    def queries(self, batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def rows(self, batch):
        return [batch.groups[0]]
"""


@pytest.fixture
def own(tmp_path: Path) -> Any:
    from pydantic import TypeAdapter

    file = tmp_path / "mine.py"
    file.write_text(OWN)
    return TypeAdapter(AnyAlgorithm).validate_python({"name": f"{file}:Mine"})


def test_an_error_of_a_users_file_is_one_line_with_the_file_and_the_place(own: Any) -> None:
    with pytest.raises(UserError) as caught:
        sums_of([made_row([3, 4])], own.loss)
    said = str(caught.value)
    assert said == f"algorithm {own.name}: loss raised KeyError in line 7: 'no such key'"
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_users_mistake_that_has_a_name_is_told_with_the_file(own: Any) -> None:
    said = r"mine.py:Mine: rows: one value for each token"
    with pytest.raises(UserError, match=said), blame(own.rows):
        raise UserError("one value for each token")


def test_a_lack_of_memory_is_no_mistake_of_the_users_file(own: Any) -> None:
    with pytest.raises(torch.OutOfMemoryError), blame(own.queries):
        own.queries(None)


def test_errors_of_our_own_algorithms_are_raised_as_they_are() -> None:
    with pytest.raises(KeyError), blame(imitation_loss):
        raise KeyError


def test_a_failed_allocation_is_told_apart_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_the_metrics_of_a_step_have_the_learners_names() -> None:
    def loss(batch: TokenBatch) -> dict[str, Tensor]:
        batch.measure("found", 3)
        return imitation_loss(batch)

    rows = [made_row([3, 4]), made_row([5, 6], loss=IMITATION, weight=2.0)]
    _, sums = sums_of(rows, loss)
    metrics = step_metrics(sums, norm=2.0, grad_clip=1.0, seconds=0.5, lr=0.1)
    for name, value in {
        "loss": 1.0,
        "loss_sft": 1.0,
        "found": 3.0,
        "entropy": 2.0,
        "padding": 0.0,
        "grad_norm": 2.0,
        "grad_clipped": 0.5,
        "lr": 0.1,
        "step_s": 0.5,
        "tokens_per_s": 8.0,
        "trained_tokens": 4.0,
        "held_tokens": 4.0,
        "engine_tokens": 0.0,
    }.items():
        assert metrics[f"learner/{name}"] == pytest.approx(value), name
    assert not any("sum_" in name for name in metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_batch_without_queries_asks_no_trainer() -> None:
    class Asked(AnyTrainer):
        def answers(self, queries: Any) -> dict[Any, Any]:
            return {query.key: 1.0 for query in queries}

    batch, ids = Batch([], answers={"before": 2.0}), np.arange(2, dtype=np.int32)
    assert Asked().answer(batch, []) is batch
    found = Asked().answer(batch, [Query("key", ids, ids > 0)])
    assert found.answers == {"before": 2.0, "key": 1.0}

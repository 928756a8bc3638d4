"""The gradient norms of a loss's parts."""

from pathlib import Path

import pytest
import torch
from torch import nn

from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.r3l import R3L
from r3l.training.measures.part_gradients import PartGradients
from r3l.training.trainer import Trainer
from tests.r3l.training.fakes import explored

ALGORITHM = R3L(group_size=4, kl_coef=0.1, clipped=True)


class Only(R3L):
    """R³L with one part of its loss."""

    name: str = "only"
    part: str = ""

    def loss(self, batch: TokenBatch) -> dict[str, torch.Tensor]:
        return {self.part: super().loss(batch)[self.part]}


def test_gradients_of_micro_batches_add_up_before_their_norm_is_taken() -> None:
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    gradients = PartGradients([one, other, frozen])
    for times in (1.0, 2.0):
        both = times * one.sum() + 0.0 * frozen.sum()
        gradients.add({"a": both, "b": 4.0 * other.sum(), "c": torch.tensor(9.0)})
        both.backward()  # the graph is still there
    norms = gradients.norms()
    assert norms["grad_norm_a"] == pytest.approx((3**2 + 3**2) ** 0.5)
    assert (norms["grad_norm_b"], norms["grad_norm_c"]) == (8.0, 0.0)
    assert one.grad is not None and one.grad.tolist() == [3.0, 3.0] and other.grad is None


def test_gradients_in_bfloat16_are_summed_in_float32() -> None:
    weights = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    gradients = PartGradients([weights])
    for amount in (256.0, *[1.0] * 8):
        gradients.add({"a": amount * weights.sum()})
    assert gradients.norms() == {"grad_norm_a": 264.0}


def test_a_parts_norm_is_that_of_a_step_on_it_alone_and_measuring_changes_no_weight(
    model_folder: Path,
) -> None:
    found, weights = {}, []
    for part_norms in (True, False):
        trainer = Trainer(
            model_folder,
            lr=1e-3,
            needs=ALGORITHM.needs,
            part_norms=part_norms,
            tokens_per_micro_batch=128,
        )
        batch = Batch(explored())
        rows = ALGORITHM.rows(trainer.answer(batch, ALGORITHM.queries(batch)))
        for _ in range(2):
            found[part_norms] = trainer.step(rows, ALGORITHM.loss).metrics
        weights.append(trainer.weights())
    names = [name for name in found[True] if name.startswith("learner/grad_norm_")]
    assert sorted(names) == [f"learner/grad_norm_{part}" for part in ("kl", "policy", "sft")]
    assert not any(name in found[False] for name in names)
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    for part in ("kl", "policy", "sft"):
        trainer = Trainer(model_folder, lr=1e-3, needs=ALGORITHM.needs)
        rows = ALGORITHM.rows(trainer.answer(batch, ALGORITHM.queries(batch)))
        trainer.step(rows, ALGORITHM.loss)  # the KL's gradient begins at 0
        alone = Only(group_size=4, kl_coef=0.1, clipped=True, part=part)
        norm = trainer.step(rows, alone.loss).metrics["learner/grad_norm"]
        assert found[True][f"learner/grad_norm_{part}"] == pytest.approx(norm, rel=1e-3), part
        assert norm > 0

"""A trainer goes back to where it was, bit for bit."""

from pathlib import Path

import pytest
import torch

from learner.offline import trainer_snapshot as snapshot
from learner.step.batch import Row, rows_of
from learner.step.trainer import Trainer
from r3l.config import load
from r3l.errors import UserError
from tests.learner.fakes import explore_group
from tests.learner.step.fakes import GROUPS, tiny_folder

STAGES = {
    "plain": ("learner.zero_stage=0", "learner.dtype=float32"),
    "ZeRO 1 in bfloat16": ("learner.zero_stage=1", "learner.dtype=bfloat16"),
    "ZeRO 2": ("learner.zero_stage=2", "learner.dtype=bfloat16"),
}


@pytest.fixture(params=STAGES.values(), ids=STAGES)
def trainer(request: pytest.FixtureRequest, tmp_path: Path) -> Trainer:
    config = load(None, ["algorithm.group_size=4", "learner.lr=1e-3", *request.param])
    return Trainer(tiny_folder(tmp_path), config.learner, config.algorithm.build())


def rows(trainer: Trainer) -> list[Row]:
    return rows_of(
        [explore_group(seed=i, **one) for i, one in enumerate(GROUPS)], trainer.algorithm
    )


def bits(trainer: Trainer) -> list[torch.Tensor]:
    return [tensor.detach().clone() for _, tensor in trainer.weights()]


def test_a_step_that_was_tried_is_the_same_when_it_is_made(trainer: Trainer) -> None:
    batch = rows(trainer)
    for _ in range(3):  # from a fresh optimizer too
        before, start = snapshot.take(trainer), bits(trainer)
        tried, results = [], []
        for again in range(3):
            if again:
                snapshot.restore(trainer, before)
                assert all(map(torch.equal, bits(trainer), start))
            results.append(trainer.step(batch).metrics)
            tried.append(bits(trainer))
        for other, metrics in zip(tried[1:], results[1:], strict=True):
            assert all(map(torch.equal, tried[0], other))
            for name in ("learner/loss", "learner/grad_norm", "learner/lr"):
                assert metrics[name] == results[0][name]
    assert not torch.equal(bits(trainer)[0], start[0])


def test_the_gradient_is_the_steps_and_the_sum_of_its_parts(trainer: Trainer) -> None:
    batch, start = rows(trainer), bits(trainer)
    whole = trainer.gradient(batch)
    parts = sum(trainer.gradient([row]) for row in batch)
    assert all(map(torch.equal, bits(trainer), start))
    exact = trainer.dtype == torch.float32
    assert float((whole - parts).norm() / whole.norm()) < (1e-5 if exact else 1e-2)
    norm = trainer.step(batch).metrics["learner/grad_norm"]
    assert float(whole.norm()) == pytest.approx(norm, rel=1e-5 if exact else 1e-2)
    assert len(snapshot.flat_weights(trainer)) >= len(whole)


def test_sharded_parameters_are_refused(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "stage", 3)
    with pytest.raises(UserError, match=r"zero_stage 3: parameters are sharded"):
        snapshot.take(trainer)

"""The trainer in plain PyTorch. Beside DeepSpeed's: tests/learner/step/test_plain_trainer.py."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import r3l
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import TokenBatch, imitation_loss
from r3l.algorithms.published.grpo import GRPO
from r3l.algorithms.queries import Query
from r3l.algorithms.r3l import R3L
from r3l.algorithms.rows import IMITATION
from r3l.errors import UserError
from r3l.rollout.policy_interface import SampleParams
from r3l.training.local_policy import LocalPolicy
from r3l.training.trainer import Trainer
from tests.r3l.training.fakes import explored, made_row, tiny_folder


class Bigram(nn.Module):
    """The logits of a token depend on the token before it alone."""

    def __init__(self, vocabulary: int = 12) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.table(token_ids)
        return logits


ALGORITHMS: list[Algorithm] = [
    R3L(group_size=4),
    GRPO(group_size=4, kl_coef=0.1),
    R3L(group_size=4, kl_coef=0.5, clipped=True),
]


def sgd(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1)


def steps(trainer: Trainer, algorithm: Algorithm, count: int = 3) -> list[dict[str, float]]:
    """The metrics of some steps on the same groups."""
    batch = Batch(explored())
    rows = algorithm.rows(trainer.answer(batch, algorithm.queries(batch)))
    results = [trainer.step(rows, algorithm.loss) for _ in range(count)]
    assert all(result.applied for result in results)
    return [result.metrics for result in results]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["r3l", "grpo", "r3l with a KL"])
def test_packed_and_padded_rows_and_any_cut_of_them_learn_alike(
    model_folder: Path, algorithm: Algorithm
) -> None:
    # Adam would blow up what rounding makes of gradients near 0.
    given: dict[str, Any] = {"optimizer": sgd, "needs": algorithm.needs}
    lm = AutoModelForCausalLM.from_pretrained(model_folder)
    trainers = [
        Trainer(model_folder, **given),
        Trainer(model_folder, **given, tokens_per_micro_batch=64),
        Trainer(lm, **given),
    ]
    assert [trainer.module.pack for trainer in trainers] == ["tree", "tree", "rows"]
    whole, *others = (steps(trainer, algorithm) for trainer in trainers)
    for other in others:
        for ours, theirs in zip(whole, other, strict=True):
            for name in ("loss", "grad_norm", "entropy", "behaviour_kl"):
                tag = f"learner/{name}"
                assert ours[tag] == pytest.approx(theirs[tag], rel=1e-4, abs=1e-6), name
    assert whole[2]["learner/loss"] < whole[0]["learner/loss"]
    for name, weights in trainers[0].weights().items():
        assert torch.allclose(weights, trainers[2].weights()[name], atol=1e-6), name
    assert lm.lm_head.weight is trainers[2].module.lm.lm_head.weight, "trained in place"


def test_any_module_from_tokens_to_logits_is_trained_with_the_users_optimizer() -> None:
    torch.manual_seed(0)
    bigram = Bigram()
    trainer = Trainer(bigram, optimizer=lambda weights: torch.optim.SGD(weights, lr=5.0))
    row = made_row([3, 4, 5, 4], loss=IMITATION)
    losses = [trainer.step([row], imitation_loss).metrics["learner/loss"] for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0] and bigram.table.weight[3].argmax() == 4
    expected = bigram.table.weight.detach().log_softmax(-1)
    ids = np.array([3, 4, 5, 6], np.int32)
    found = trainer.answers([Query("q", ids, ids > 3)])["q"]
    assert found[1:].tolist() == pytest.approx([float(expected[i, i + 1]) for i in (3, 4, 5)])


def test_a_module_without_logits_is_refused() -> None:
    class Wrong(Bigram):
        def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
            return self.table(token_ids)[:, 0]

    with pytest.raises(UserError, match=r"token ids of shape \(1, 3\) to \(1, 12\); it must"):
        Trainer(Wrong()).step([made_row([3, 4, 5])], imitation_loss)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_step_that_is_not_finite_changes_nothing(poison: float) -> None:
    def loss(batch: TokenBatch) -> dict[str, torch.Tensor]:
        return {"policy": poison * batch.logprobs_BT.sum()}

    trainer = Trainer(Bigram(), lr=1.0)
    before = trainer.weights()
    result = trainer.step([made_row([3, 4, 5])], loss)
    assert not result.applied
    assert all(torch.equal(trainer.weights()[name], old) for name, old in before.items())
    assert trainer.step([made_row([3, 4, 5])], lambda b: {"p": -b.logprobs_BT.sum()}).applied


def test_a_step_without_rows_has_the_loss_0() -> None:
    result = Trainer(Bigram()).step([], GRPO().loss)
    assert result.applied and result.metrics["learner/loss"] == 0.0


def test_the_gradient_is_clipped_and_its_norm_reported() -> None:
    trainer = Trainer(Bigram(), grad_clip=0.01, optimizer=lambda w: torch.optim.SGD(w, lr=1.0))
    before = trainer.weights()["table.weight"]
    metrics = trainer.step([made_row([3, 4, 5], loss=IMITATION)], imitation_loss).metrics
    moved = trainer.weights()["table.weight"] - before
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-4)
    assert metrics["learner/grad_norm"] > 0.5
    assert metrics["learner/grad_clipped"] == pytest.approx(1 - 0.01 / metrics["learner/grad_norm"])


def logprobs(trainer: Trainer, weights: Any) -> list[float]:
    ids = np.array([3, 4, 5], np.int32)
    answer = trainer.answers([Query("q", ids, ids > 3, weights=weights)])["q"]
    found: list[float] = answer[1:].tolist()
    return found


def test_queries_are_answered_under_current_reference_and_averaged_weights() -> None:
    trainer = Trainer(Bigram(), lr=0.1, needs=("reference", "averaged"), average_decay=0.5)
    start, row = logprobs(trainer, "current"), made_row([3, 4, 5], loss=IMITATION)
    for _ in range(2):
        trainer.step([row], imitation_loss)
    now, before, mean = (logprobs(trainer, w) for w in ("current", "reference", "averaged"))
    assert before == pytest.approx(start)
    assert all(a < b < c for a, b, c in zip(before, mean, now, strict=True))
    with pytest.raises(UserError, match="under the averaged weights, which this trainer does not"):
        logprobs(Trainer(Bigram()), "averaged")


def test_a_reference_may_be_another_model(model_folder: Path, tmp_path: Path) -> None:
    other = tiny_folder(tmp_path / "other", num_hidden_layers=1)
    trainer = Trainer(model_folder, reference=other, needs=("reference",))
    alone = Trainer(other)
    assert logprobs(trainer, "reference") == pytest.approx(logprobs(alone, "current"), abs=1e-5)


def test_tokens_that_the_model_does_not_know_are_refused(model_folder: Path) -> None:
    trainer = Trainer(model_folder)
    with pytest.raises(UserError, match=r"a row: holds token 300, .* ends at 255"):
        trainer.step([made_row([3, 300])], imitation_loss)
    ids = np.array([3, 300], np.int32)
    with pytest.raises(UserError, match="query 'q': holds token 300"):
        trainer.answers([Query("q", ids, ids > 3)])


def test_weights_are_copies_that_a_trainer_of_the_same_model_can_load() -> None:
    one, other = Trainer(Bigram()), Trainer(Bigram())
    weights = one.weights()
    other.load(weights)
    weights["table.weight"].zero_()
    assert one.weights()["table.weight"].any()
    assert torch.equal(other.weights()["table.weight"], one.weights()["table.weight"])
    with pytest.raises(UserError, match=r"weights: 2 names or shapes differ .* such as head"):
        other.load({"head": weights["table.weight"]})
    with pytest.raises(UserError, match=r"such as table\.weight"):
        other.load({"table.weight": weights["table.weight"][:1]})


def test_a_model_that_is_none_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        Trainer(tmp_path)


def test_the_policy_of_the_package_samples_with_what_its_trainer_learned() -> None:
    trainer, policy = r3l.Trainer("builtin", lr=1e-2), r3l.LocalPolicy("builtin")
    assert isinstance(trainer, Trainer) and isinstance(policy, LocalPolicy)
    prompt = [*policy.chat.open("be brief", "what now?"), *policy.chat.prompt_ids]
    taught = [*policy.chat.encode("take brass vase"), policy.chat.end_id]
    ids = np.array([*prompt, *taught], np.int32)
    row = made_row(ids, np.arange(len(ids)) >= len(prompt), weight=1 / len(taught), loss=IMITATION)
    for _ in range(20):
        trainer.step([row], imitation_loss)
    policy.load(trainer.weights())
    sample = asyncio.run(policy.sample(prompt, SampleParams(20, temperature=0.0)))
    assert list(sample.token_ids) == taught and sample.version == 1
    told = trainer.answers([Query("q", row.token_ids, row.mask)])["q"]
    assert told[row.mask].tolist() == pytest.approx(sample.logprobs, abs=1e-4)

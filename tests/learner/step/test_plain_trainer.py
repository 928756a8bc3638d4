"""DeepSpeed's trainer beside the plain one: equal losses, gradients, weights and answers."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.step.shared_rows import SharedRows
from r3l.algorithms.batch import Batch
from r3l.errors import RestartNeeded, TrainingStopped, UserError
from r3l.training.micro_batch import MicroBatch
from r3l.training.trainer import Trainer
from tests.learner.fakes import rows_of_rank_0
from tests.learner.ranks import on_two_ranks
from tests.learner.step import asked
from tests.r3l.training.fakes import explored, tiny_folder

SAME = ("loss", "loss_policy", "loss_sft", "kl_reference", "grad_norm", "entropy", "behaviour_kl")
PARTS = ("grad_norm_policy", "grad_norm_kl", "grad_norm_sft")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


def plain(model: Path) -> Trainer:
    return Trainer(
        model,
        lr=1e-3,
        tokens_per_micro_batch=128,
        needs=asked.NEEDS,
        average_decay=asked.DECAY,
        part_norms=True,
    )


def same(ours: asked.Seen, theirs: asked.Seen, *, exact: float) -> None:
    """Whether metrics and answers are equal."""
    for one, other in zip(ours["steps"], theirs["steps"], strict=True):
        for name in (*SAME, *(PARTS if PARTS[0] in one else ())):
            assert one[name] == pytest.approx(other[name], rel=exact, abs=exact), name
    assert ours["answers"].keys() <= theirs["answers"].keys() and ours["answers"]
    for key, answer in ours["answers"].items():
        found, expected = np.asarray(answer, float), np.asarray(theirs["answers"][key], float)
        if key.endswith("topk"):
            found, expected = found[0], expected[0]  # of equally likely tokens any may be named
        assert np.allclose(found, expected, atol=10 * exact), key


@pytest.mark.parametrize("stage", [0, 1])
def test_on_one_rank_the_two_trainers_are_equal(model: Path, stage: int) -> None:
    own = plain(model)
    other = asked.trainer_with(model, f"zero_stage={stage}", "part_norms=true")
    queries = asked.queries(*asked.kinds(other))
    ours, theirs = asked.seen_by(own, queries), asked.seen_by(other, queries)
    assert theirs["steps"][1].keys() >= {*PARTS}
    same(ours, theirs, exact=1e-6)
    averages = [np.asarray(ours["answers"][f"0 {kind} logprobs"]) for kind in sorted(own.held)]
    assert all(np.abs(a - b).max() > 1e-4 for a, b in pairwise(averages))
    weights, others = own.weights(), dict(other.weights())
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert torch.allclose(tensor, others[name], rtol=0, atol=1e-6), name


@pytest.mark.system
def test_two_ranks_answer_as_one_does_under_every_zero_stage_and_with_adapters(
    model: Path, tmp_path: Path
) -> None:
    variants = [f"zero_stage={stage};part_norms=true" for stage in range(3)] + ["zero_stage=3"]
    adapted = [f"lora={{rank: 4}};zero_stage={stage}" for stage in (0, 3)]
    on_two_ranks(asked.watch, tmp_path, model, *variants, *adapted)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    own = plain(model)
    alone = asked.seen_by(own, asked.queries(*sorted(own.held)))
    lora = asked.trainer_with(model, "lora={rank: 4}")
    alone_adapted = asked.seen_by(lora, asked.queries(*asked.kinds(lora)))
    for variant in (*variants, *adapted):
        assert second[variant]["answers"] == {}, "only rank 0 makes rows of them"
        assert first[variant]["steps"][0]["loss"] == second[variant]["steps"][0]["loss"]
        assert (PARTS[0] in first[variant]["steps"][0]) == ("part_norms" in variant)
        expected = alone_adapted if variant in adapted else alone
        # Adam turns what rounding makes of gradients near 0 into steps of full length.
        same(first[variant], expected, exact=2e-5)
    for name, tensor in own.weights().items():
        apart = (
            torch.tensor(first["zero_stage=1;part_norms=true"]["weights"][name]) - tensor
        ).abs()
        assert float(apart.mean()) < 1e-6, name


def test_without_its_adapters_the_model_is_its_reference(model: Path) -> None:
    adapted, whole = asked.trainer_with(model, "lora={rank: 4}"), asked.trainer_with(model)
    assert adapted.reference is None and whole.reference is not None
    queries = asked.queries("reference")
    ours, theirs = asked.seen_by(adapted, queries), asked.seen_by(whole, queries)
    for key, answer in ours["answers"].items():
        expected = np.asarray(theirs["answers"][key], float)
        assert np.allclose(np.asarray(answer, float), expected, atol=1e-5), key


def test_averaged_weights_are_refused_if_no_rank_holds_all_of_them(model: Path) -> None:
    config = asked.trainer_with(model, "zero_stage=1").config
    sharded = config.model_copy(update={"zero_stage": 3})
    with pytest.raises(UserError, match=r"learner\.zero_stage=3: the algorithm needs averaged"):
        asked.DeepSpeedTrainer(model, sharded, needs=("averaged",))


def forgetful(trainer: Any, most: int) -> None:
    """Lets memory run out whenever more than `most` tokens are scored."""
    healthy = trainer._scores

    def scores(weights: Any, micro: MicroBatch, top: int) -> Any:
        if micro.nodes.token_ids_N.numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return healthy(weights, micro, top)

    trainer._scores = scores


def test_queries_that_run_out_of_memory_are_asked_again_with_a_smaller_budget(model: Path) -> None:
    queries = asked.queries("current")
    whole = asked.trainer_with(model).answers(queries)
    trainer = asked.trainer_with(model)
    forgetful(trainer, 70)
    found = trainer.answers(queries)
    assert trainer.budget == 64
    for key, answer in found.items():
        if not key.endswith("topk"):
            assert np.allclose(answer, whole[key], atol=1e-5), key


def test_under_zero_stage_3_the_learner_restarts_if_queries_run_out_of_memory(model: Path) -> None:
    trainer = asked.trainer_with(model, "zero_stage=3")
    forgetful(trainer, 70)
    with pytest.raises(RestartNeeded, match="under ZeRO stage 3; the learner restarts with 64"):
        trainer.answers(asked.queries("current"))


@pytest.mark.parametrize("named", ["_of_turn", "__init__", "all_found"])
def test_memory_that_runs_out_between_ranks_restarts_the_learner_with_a_smaller_budget(
    model: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    trainer = asked.trainer_with(model)
    rows = rows_of_rank_0(trainer, asked.ALGORITHM, Batch(explored()))
    monkeypatch.setattr(SharedRows, named, full)
    exchanges: list[Callable[[], Any]] = [lambda: trainer.answers(asked.queries("current"))]
    if named != "all_found":
        exchanges.append(lambda: trainer.step(rows, asked.ALGORITHM.loss))
    for exchange in exchanges:
        with pytest.raises(RestartNeeded, match=r"exchanged rows; .* with 64") as caught:
            exchange()
        assert caught.value.facts["tokens_per_micro_batch"] == 64
    trainer.budget = 1
    with pytest.raises(TrainingStopped, match="out of memory at the smallest micro-batch: 1 token"):
        exchanges[-1]()

"""The optimizer step on a real DeepSpeed engine: the cut and the ranks do not matter."""

from pathlib import Path

import pytest
import torch

from learner.step.deepspeed_trainer import DeepSpeedTrainer, smaller_budget
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import Row
from r3l.errors import TrainingStopped
from r3l.run.config import RunConfig, load
from tests.learner.fakes import measured
from tests.learner.ranks import three_steps, three_steps_of_two_ranks
from tests.r3l.training.fakes import explored


def trainer_of(model: Path, config: RunConfig) -> DeepSpeedTrainer:
    return DeepSpeedTrainer(model, config.learner, needs=config.algorithm.needs)


def rows_for(trainer: DeepSpeedTrainer, algorithm: Algorithm, *weights: float) -> list[Row]:
    """The rows of GROUPS, made with the answers of the trainer."""
    groups = explored()
    batch = Batch(groups, weights)
    return algorithm.rows(trainer.answer(batch, algorithm.queries(batch)))


@pytest.mark.system
def test_losses_do_not_depend_on_packing_micro_batches_ranks_or_zero_stage(
    model_folder: Path, tmp_path: Path
) -> None:
    one = ("pack=tree", "pack=rows", "tokens_per_micro_batch=64")
    two = ("zero_stage=0", "zero_stage=1", "zero_stage=2", "zero_stage=3")
    variants = three_steps(model_folder, "r3l gspo", *one)
    variants |= three_steps_of_two_ranks(tmp_path / "two", model_folder, "r3l gspo", *two)
    whole = variants["pack=tree"]
    for name, steps in variants.items():
        for step, (ours, theirs) in enumerate(zip(steps, whole, strict=True)):
            where = (name, step)
            for key in (
                "loss",
                "loss_penalized",
                "loss_policy",
                "loss_sft",
                "entropy",
                "behaviour_kl",
            ):
                assert ours[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-6), (*where, key)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3), where
    assert whole[2]["loss"] < whole[0]["loss"]
    assert whole[0]["shared_tokens"] > 0.3 and whole[0]["padding"] == 0.0
    assert variants["pack=rows"][0]["shared_tokens"] == 0.0


def test_a_group_of_weight_two_counts_twice_and_one_of_weight_zero_not_at_all(
    model_folder: Path,
) -> None:
    # What takes all kinds of terms: a KL to the reference, and auxiliary samples.
    more = ["algorithm.kl_coef=0.1", "algorithm.sft_weight=0.5", "algorithm.sft_share=null"]
    config = load(None, ["algorithm.group_size=4", "learner.lr=1e-12", *more])
    trainer, algorithm = trainer_of(model_folder, config), config.algorithm
    plain, weighted = rows_for(trainer, algorithm), rows_for(trainer, algorithm, 2.0, 0.0, 1.0)
    pairs = zip(plain, weighted, strict=True)
    counts = [round(float(b.weights[-1] / a.weights[-1])) for a, b in pairs]
    assert set(counts) == {0, 1, 2}
    repeated = [row for row, count in zip(plain, counts, strict=True) for _ in range(count)]
    got, want = (measured(trainer.step(rows, algorithm.loss)) for rows in (weighted, repeated))
    assert got["loss_policy"] != 0.0 and got["loss_sft"] > 0.0
    for key in ("loss", "loss_policy", "loss_sft", "grad_norm"):
        assert got[key] == pytest.approx(want[key], rel=1e-5), key


def test_products_in_bfloat16_learn_alike_and_from_an_equal_reference(model_folder: Path) -> None:
    found = {}
    for compute in ("dtype", "bfloat16"):
        settings = ["algorithm=grpo", "learner.lr=1e-3", f"learner.compute={compute}"]
        config = load(None, settings)
        trainer, loss = trainer_of(model_folder, config), config.algorithm.loss
        rows = rows_for(trainer, config.algorithm)
        found[compute] = [measured(trainer.step(rows, loss)) for _ in range(4)]
        assert {weights.dtype for _, weights in trainer.weights()} == {torch.float32}
    assert found["bfloat16"][0]["kl_reference"] == 0.0, "the reference computes as the policy does"
    for exact, rounded in zip(found["dtype"], found["bfloat16"], strict=True):
        assert rounded["loss"] == pytest.approx(exact["loss"], rel=0.05, abs=0.02)
        assert rounded["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.05)


def test_a_step_tells_the_seconds_of_its_parts(model_folder: Path) -> None:
    config = load(None, ["algorithm=raft", "learner.tokens_per_micro_batch=64"])
    trainer = trainer_of(model_folder, config)
    rows = rows_for(trainer, config.algorithm)
    for _ in range(2):
        found = measured(trainer.step(rows, config.algorithm.loss))
        parts = [found[f"{part}_s"] for part in ("forward", "backward", "update")]
        assert min(parts) > 0 and sum(parts) <= found["step_s"]


@pytest.mark.parametrize(("stage", "rate"), [(0, 1e30), (1, 1e30), (1, 1e8)])
def test_an_update_that_ruins_the_weights_is_blamed_on_the_step(
    model_folder: Path, stage: int, rate: float
) -> None:
    settings = [f"learner.lr={rate}", f"learner.zero_stage={stage}", "algorithm.group_size=4"]
    config = load(None, settings)
    trainer = trainer_of(model_folder, config)
    rows = rows_for(trainer, config.algorithm)
    norm = measured(trainer.step(rows, config.algorithm.loss))["grad_norm"]
    said = r"step 7 made weights that are NaN .*gradient norm [0-9.]+, .* lower learner\.lr"
    with pytest.raises(TrainingStopped, match=said):
        trainer.check_weights(7, norm)


def test_weights_that_the_model_folder_already_had_as_nan_are_not_blamed_on_a_step(
    model_folder: Path,
) -> None:
    config = load(None, ["learner.lr=1e-3", "algorithm.group_size=4"])
    trainer = trainer_of(model_folder, config)
    trainer.ruined = 1
    weights = next(trainer.module.parameters())
    with torch.no_grad():
        weights[-1, 0] = torch.nan
    trainer.check_weights(1, 1.0)
    with torch.no_grad():
        weights[-1, 1] = torch.inf
    with pytest.raises(TrainingStopped):
        trainer.check_weights(1, 1.0)


def test_the_budget_is_halved_until_it_is_the_longest_sequence() -> None:
    assert smaller_budget(8192, 300) == 4096 and smaller_budget(512, 300) == 300
    with pytest.raises(TrainingStopped, match="longest sequence 300 tokens"):
        smaller_budget(300, 300)

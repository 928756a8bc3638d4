"""The optimizer step on a real DeepSpeed engine: the cut and the ranks do not matter."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learner.step.batch import rows_of
from learner.step.trainer import Trainer, is_out_of_memory, smaller_budget
from r3l.algorithms.r3l import R3LConfig
from r3l.errors import TrainingStopped
from r3l.run.config import load
from tests.learner.fakes import measured
from tests.learner.ranks import three_steps, three_steps_of_two_ranks
from tests.r3l.training.fakes import GROUPS, explore_group


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
    assert whole[0]["shared_tokens"] > 0.4 and whole[0]["padding"] == 0.0
    assert variants["pack=rows"][0]["shared_tokens"] == 0.0


def test_the_rows_of_a_step_do_not_depend_on_the_order_of_its_groups() -> None:
    algorithm = R3LConfig(group_size=4).build()
    groups = [explore_group(**g, seed=i) for i, g in enumerate(GROUPS)]
    one, other = rows_of(groups, algorithm), rows_of(groups[::-1], algorithm)
    terms = [sorted((r.advantage, r.weight) for r in rows) for rows in (one, other)]
    assert terms[0] == terms[1] and len(one) == len(other) > 0


def test_a_group_of_weight_two_counts_twice_and_one_of_weight_zero_not_at_all(
    model_folder: Path,
) -> None:
    config = load(None, ["algorithm=reflect_grpo", "algorithm.group_size=4", "learner.lr=1e-12"])
    # What takes all kinds of terms: a KL to the reference, and auxiliary samples.
    algorithm = replace(config.algorithm.build(), sft_weight=0.5)
    groups = [explore_group(**g, seed=i) for i, g in enumerate(GROUPS)]
    plain, weighted = rows_of(groups, algorithm), rows_of(groups, algorithm, [2.0, 0.0, 1.0])
    counts = [round(b.weight / a.weight) for a, b in zip(plain, weighted, strict=True)]
    assert set(counts) == {0, 1, 2}
    repeated = [row for row, count in zip(plain, counts, strict=True) for _ in range(count)]
    trainer = Trainer(model_folder, config.learner, algorithm)
    got, want = measured(trainer.step(weighted)), measured(trainer.step(repeated))
    assert got["loss_policy"] != 0.0 and got["loss_sft"] > 0.0
    for key in ("loss", "loss_policy", "loss_sft", "grad_norm"):
        assert got[key] == pytest.approx(want[key], rel=1e-5), key


def test_products_in_bfloat16_learn_alike_and_from_an_equal_reference(model_folder: Path) -> None:
    groups = [explore_group(**g, seed=i) for i, g in enumerate(GROUPS)]
    found = {}
    for compute in ("dtype", "bfloat16"):
        settings = ["algorithm=grpo", "learner.lr=1e-3", f"learner.compute={compute}"]
        config = load(None, settings)
        algorithm = config.algorithm.build()
        trainer = Trainer(model_folder, config.learner, algorithm)
        rows = rows_of(groups, algorithm)
        found[compute] = [measured(trainer.step(rows)) for _ in range(4)]
        assert {weights.dtype for _, weights in trainer.weights()} == {torch.float32}
    assert found["bfloat16"][0]["kl_reference"] == 0.0, "the reference computes as the policy does"
    for exact, rounded in zip(found["dtype"], found["bfloat16"], strict=True):
        assert rounded["loss"] == pytest.approx(exact["loss"], rel=0.05, abs=0.02)
        assert rounded["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.05)


def test_a_step_tells_the_seconds_of_its_parts(model_folder: Path) -> None:
    config = load(None, ["algorithm=raft", "learner.tokens_per_micro_batch=64"])
    groups = [explore_group(**g, seed=i) for i, g in enumerate(GROUPS)]
    rows = rows_of(groups, config.algorithm.build())
    trainer = Trainer(model_folder, config.learner, config.algorithm.build())
    for _ in range(2):
        found = measured(trainer.step(rows))
        parts = [found[f"{part}_s"] for part in ("forward", "backward", "update")]
        assert min(parts) > 0 and sum(parts) <= found["step_s"]


@pytest.mark.parametrize(("stage", "rate"), [(0, 1e30), (1, 1e30), (1, 1e8)])
def test_an_update_that_ruins_the_weights_is_blamed_on_the_step(
    model_folder: Path, stage: int, rate: float
) -> None:
    settings = [f"learner.lr={rate}", f"learner.zero_stage={stage}", "algorithm.group_size=4"]
    config = load(None, settings)
    algorithm = config.algorithm.build()
    rows = rows_of([explore_group(**g, seed=i) for i, g in enumerate(GROUPS)], algorithm)
    trainer = Trainer(model_folder, config.learner, algorithm)
    norm = measured(trainer.step(rows))["grad_norm"]
    said = r"step 7 made weights that are NaN .*gradient norm [0-9.]+, .* lower learner\.lr"
    with pytest.raises(TrainingStopped, match=said):
        trainer.check_weights(7, norm)


def test_weights_that_the_model_folder_already_had_as_nan_are_not_blamed_on_a_step(
    model_folder: Path,
) -> None:
    config = load(None, ["learner.lr=1e-3", "algorithm.group_size=4"])
    algorithm = config.algorithm.build()
    trainer = Trainer(model_folder, config.learner, algorithm)
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


def test_a_failed_allocation_is_told_apart_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))

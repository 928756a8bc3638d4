"""Training of low-rank adapters: what they change, what is published, what is saved."""

import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from learner import checkpoint
from learner.step import full_weights
from learner.step.adapters import published_apart
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.algorithms.batch import Batch
from r3l.errors import UserError
from r3l.run.config import load
from tests.learner.fakes import measured
from tests.learner.ranks import three_steps, three_steps_of_two_ranks
from tests.learner.step.faulty import Silent
from tests.r3l.training.fakes import explored

SETTINGS = ("algorithm=reflect_grpo", "algorithm.group_size=4", "learner.lr=1e-2")
LORA = "learner.lora={rank: 4, alpha: 8, targets: [q_proj, down_proj]}"


def trained(model: Path, steps: int, *more: str) -> tuple[DeepSpeedTrainer, list[dict[str, float]]]:
    config = load(None, [*SETTINGS, *more])
    algorithm = config.algorithm
    trainer = DeepSpeedTrainer(model, config.learner, needs=algorithm.needs)
    batch = Batch(explored())
    rows = algorithm.rows(trainer.answer(batch, algorithm.queries(batch)))
    return trainer, [measured(trainer.step(rows, algorithm.loss)) for _ in range(steps)]


def test_only_targeted_matrices_change_and_by_the_product_of_the_adapters(
    model_folder: Path, tmp_path: Path
) -> None:
    trainer, steps = trained(model_folder, 3, LORA)
    assert steps[2]["loss_policy"] < steps[0]["loss_policy"]
    before = load_file(model_folder / "model.safetensors")
    after = dict(trainer.weights())
    assert after.keys() == before.keys()
    assert [
        (n, d, s) for n, d, s in full_weights.shapes(full_weights.whole(trainer.module.lm))
    ] == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in after.items()]
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    targets = ("self_attn.q_proj", "mlp.down_proj")
    assert changed == {f"model.layers.{i}.{end}.weight" for i in range(2) for end in targets}
    trainer.save_adapters(tmp_path)
    adapter = load_file(tmp_path / "adapter_model.safetensors")
    start = "base_model.model.model.layers.1.mlp.down_proj.lora_"
    a, b = adapter[f"{start}A.weight"], adapter[f"{start}B.weight"]
    assert a.shape == (4, 128) and b.shape == (64, 4)
    name = "model.layers.1.mlp.down_proj.weight"
    torch.testing.assert_close(after[name], before[name] + 8 / 4 * b @ a)
    assert not (tmp_path / "model.safetensors").exists()


def test_the_saved_model_the_adapter_in_peft_and_the_trainer_agree(
    model_folder: Path, tmp_path: Path
) -> None:
    trainer, _ = trained(model_folder, 2, LORA)
    assert checkpoint.save_model(trainer, tmp_path / "saved", Silent(), 2)
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        untrained = base(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")(ids).logits
        loaded = PeftModel.from_pretrained(base, tmp_path / "saved" / "adapter")(ids).logits
    torch.testing.assert_close(merged, loaded, atol=1e-4, rtol=1e-4)
    assert (merged - untrained).abs().max() > 0.02


def test_the_reference_is_the_base_without_adapters_and_needs_no_second_model(
    model_folder: Path,
) -> None:
    trainer, steps = trained(model_folder, 2, LORA)
    full, both = trained(model_folder, 2)
    assert trainer.reference is None and full.reference is not None
    assert steps[0]["loss"] == pytest.approx(both[0]["loss"], abs=1e-6)
    assert abs(steps[0]["kl_reference"]) < 1e-6 < steps[1]["kl_reference"]


def test_layers_that_cannot_be_adapted_are_refused(model_folder: Path) -> None:
    with pytest.raises(UserError, match=r"learner\.lora\.targets"):
        trained(model_folder, 0, "learner.lora={rank: 4, targets: [c_attn]}")


def test_adapters_are_published_alone_if_the_base_folder_has_the_layers_by_their_names(
    model_folder: Path, tmp_path: Path
) -> None:
    trainer, _ = trained(model_folder, 1, LORA)
    tensors, shapes = trainer.published_weights()
    alone = dict(tensors)
    assert len(alone) == 8 and all(".lora_" in name for name in alone)
    assert [(n, d, tuple(s)) for n, d, s in shapes] == [
        (name, tensor.dtype, tuple(tensor.shape)) for name, tensor in alone.items()
    ]
    assert trainer.adapters and (trainer.adapters.dtype, trainer.adapters.scaling) == ("float32", 2)
    other = shutil.copytree(model_folder, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    renamed = {name.replace("q_proj", "query"): tensor for name, tensor in weights.items()}
    save_file(renamed, other / "model.safetensors")
    assert published_apart(trainer.module.lm, other) is None


@pytest.mark.system
def test_two_ranks_have_the_losses_of_one_under_every_zero_stage(
    model_folder: Path, tmp_path: Path
) -> None:
    lora = "lora={rank: 4}"
    one = three_steps(model_folder, "reflect_grpo", lora)
    stages = [f"{lora};zero_stage={stage}" for stage in range(4)]
    two = three_steps_of_two_ranks(tmp_path / "two", model_folder, "reflect_grpo", *stages)
    for stage in stages:
        for ours, theirs in zip(two[stage], one[lora], strict=True):
            for key in ("loss", "loss_policy", "kl_reference", "entropy"):
                assert ours[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-6), (stage, key)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3), stage
        assert two[stage][2]["published"] == pytest.approx(one[lora][2]["published"], abs=1e-4)
    assert one[lora][2]["loss_policy"] < one[lora][0]["loss_policy"]

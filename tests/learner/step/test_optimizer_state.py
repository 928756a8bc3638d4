"""The optimizer's state by parameter. Other ranks and stages: test_faults_on_one_rank."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from learner.step import optimizer_state
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.algorithms.queries import Weights
from tests.learner.step.faulty import Bench


def kept(trainer: DeepSpeedTrainer, folder: Path) -> dict[str, torch.Tensor]:
    folder.mkdir()
    optimizer_state.save(trainer, folder)
    return load_file(folder / optimizer_state.FILE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_trained_parameter_has_its_moments_and_full_precision_weights(
    model_folder: Path, tmp_path: Path, dtype: str
) -> None:
    bench = Bench(model_folder, "1", dtype)
    trainer = bench.trainer()
    bench.steps(trainer, 2)
    saved = kept(trainer, tmp_path / "first")
    names = [name for name, _ in trainer.weights()]
    kinds = {"exp_avg", "exp_avg_sq"} | ({"master"} if dtype == "bfloat16" else set())
    expected = {f"{kind}/{name}" for kind in kinds for name in names}
    assert saved.keys() == expected | {"rng/cpu"}
    for name, weight in trainer.weights():
        assert saved[f"exp_avg/{name}"].shape == weight.shape and saved[f"exp_avg/{name}"].any()
        if dtype == "bfloat16":
            master = saved[f"master/{name}"]
            assert torch.equal(master.bfloat16(), weight)
    other = bench.trainer()
    optimizer_state.load(other, tmp_path / "first", 2)
    states = getattr(other.optimizer, "optimizer", other.optimizer).state.values()
    assert {float(state["step"]) for state in states if state} == {2.0}
    again = kept(other, tmp_path / "second")
    assert again.keys() == saved.keys()
    for name, tensor in saved.items():
        assert torch.equal(again[name], tensor), name


def test_a_trainer_that_made_no_step_has_no_moments_to_save_or_restore(
    model_folder: Path, tmp_path: Path
) -> None:
    bench = Bench(model_folder, "0", "float32")
    assert kept(bench.trainer(), tmp_path / "none").keys() == {"rng/cpu"}
    trainer = bench.trainer()
    optimizer_state.load(trainer, tmp_path / "none", 0)
    assert len(bench.steps(trainer, 1)) == 1


@pytest.mark.parametrize("lora", [0, 4])
def test_a_running_average_of_the_weights_goes_on_where_it_was(
    model_folder: Path, tmp_path: Path, lora: int
) -> None:
    def made(needs: tuple[Weights, ...] = ("averaged",)) -> DeepSpeedTrainer:
        config = bench.config.learner
        return DeepSpeedTrainer(model_folder, config, needs=needs, average_decay=0.9)

    bench = Bench(model_folder, "0", "float32", str(lora))
    trainer, other = made(), made()
    bench.steps(trainer, 2)
    saved = kept(trainer, tmp_path / "first")
    assert trainer.average is not None and other.average is not None
    means = {f"averaged/{name}": mean for name, mean in trainer.average.means.items()}
    assert len(means) > 4 and means.keys() <= saved.keys()
    optimizer_state.load(other, tmp_path / "first", 2)
    for name, mean in trainer.average.means.items():
        assert torch.equal(saved[f"averaged/{name}"], mean)
        assert torch.equal(other.average.means[name], mean)
    # An algorithm that does not need it any more, or did not yet, finds its own state all the same.
    optimizer_state.load(made(()), tmp_path / "first", 2)
    optimizer_state.load(other, _without_average(bench, tmp_path), 2)


def _without_average(bench: Bench, folder: Path) -> Path:
    trainer = DeepSpeedTrainer(bench.model, bench.config.learner)
    bench.steps(trainer, 1)
    kept(trainer, folder / "second")
    return folder / "second"

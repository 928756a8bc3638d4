"""RunState that waits in host memory, and a user's DeepSpeed settings, on a real engine."""

import json
from pathlib import Path

import pytest

from learner import checkpoint
from learner.checkpoint import RunState
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.run.config import load
from tests.learner.fakes import measured
from tests.learner.step.faulty import saved
from tests.r3l.training.fakes import explored, rows_of

SAME = ("loss", "loss_policy", "loss_sft", "entropy", "behaviour_kl")
USERS_SETTINGS = {
    "zero_optimization": {
        "offload_optimizer": {"device": "cpu"},
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_bucket_size": 100_000,
    },
    "wall_clock_breakdown": False,
}


class Learner:
    """A trainer with some settings, and steps on the same groups."""

    def __init__(self, model: Path, *overrides: str) -> None:
        config = load(None, ["algorithm.group_size=4", "learner.lr=1e-3", *overrides])
        algorithm = self.algorithm = config.algorithm
        groups = explored()
        self.rows = rows_of(groups, algorithm)
        self.trainer = DeepSpeedTrainer(model, config.learner)

    def steps(self, count: int) -> list[dict[str, float]]:
        return [measured(self.trainer.step(self.rows, self.algorithm.loss)) for _ in range(count)]


@pytest.fixture(scope="module")
def plain(model_folder: Path) -> list[dict[str, float]]:
    return Learner(model_folder).steps(4)


def same(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for name in SAME:
            assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-6), name
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


@pytest.mark.parametrize(("offload", "stage"), [("optimizer", 1), ("optimizer", 2), ("all", 3)])
def test_offloaded_state_trains_alike_and_resumes_from_a_checkpoint(
    model_folder: Path, tmp_path: Path, plain: list[dict[str, float]], offload: str, stage: int
) -> None:
    settings = (f"learner.offload={offload}", f"learner.zero_stage={stage}")
    learner = Learner(model_folder, *settings)
    inner = learner.trainer.engine.config["zero_optimization"]
    assert inner["offload_optimizer"]["device"] == "cpu"
    same(learner.steps(2), plain[:2])
    assert saved(learner.trainer, tmp_path, RunState(2), keep=1)
    folder = checkpoint.latest(tmp_path)
    assert folder is not None
    resumed = Learner(folder, *settings)
    checkpoint.restore(resumed.trainer, folder)
    same(resumed.steps(2), plain[2:])


def test_the_engine_runs_with_the_deepspeed_settings_of_the_user(
    model_folder: Path, plain: list[dict[str, float]]
) -> None:
    own = f"learner.deepspeed={json.dumps(USERS_SETTINGS)}"
    learner = Learner(model_folder, own, "learner.zero_stage=2")
    assert learner.trainer.engine.zero_reduce_bucket_size() == 100_000
    assert learner.trainer.engine.zero_use_cpu_optimizer()
    same(learner.steps(2), plain[:2])


def test_checkpointed_activations_change_no_loss(
    model_folder: Path, plain: list[dict[str, float]]
) -> None:
    learner = Learner(model_folder, "learner.gradient_checkpointing=true")
    assert learner.trainer.module.lm.is_gradient_checkpointing
    same(learner.steps(2), plain[:2])

"""What each rank sees when one of them fails."""

import json
from functools import partial
from pathlib import Path

import torch

from learner import checkpoint
from learner.checkpoint import Checkpoints, RunState
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.run.config import load
from tests.learner.fakes import measured
from tests.r3l.training.fakes import explored, rows_of

SETTINGS = (
    "algorithm.group_size=4",
    "learner.lr=1e-3",
    "learner.schedule=cosine",
    "learner.steps=9",
    "learner.warmup_steps=2",
    "learner.tokens_per_micro_batch=512",
)


class Silent:
    """A tokenizer that has nothing to save."""

    def save_pretrained(self, folder: Path) -> None:
        """Save nothing."""


def saved(trainer: DeepSpeedTrainer, folder: Path, state: RunState, keep: int) -> bool:
    """Save a checkpoint and wait for the disk; whether it is there."""
    checkpoints = Checkpoints(trainer, folder, Silent(), keep)
    checkpoints.save(state)
    return checkpoints.finish()


class Bench:
    """Trainers of one configuration, and steps on the same groups with a fault on one rank."""

    def __init__(self, model: Path, stage: str, dtype: str, lora: str = "0") -> None:
        self.given = (dtype, lora)
        more = (f"zero_stage={stage}", f"dtype={dtype}", f"lora.rank={lora}")
        self.config = load(None, [*SETTINGS, *(f"learner.{one}" for one in more)])
        self.algorithm = self.config.algorithm
        groups = explored()
        self.rows = rows_of(groups, self.algorithm)
        self.model = model

    def under(self, stage: int) -> "Bench":
        return Bench(self.model, str(stage), *self.given)

    def trainer(self, start: Path | None = None) -> DeepSpeedTrainer:
        if self.config.learner.lora.rank:
            return DeepSpeedTrainer(self.model, self.config.learner, adapter=start)
        return DeepSpeedTrainer(start or self.model, self.config.learner)

    def steps(self, trainer: DeepSpeedTrainer, count: int, fault=None) -> list[dict[str, float]]:
        healthy = trainer.losses
        if fault is not None and trainer.rank == trainer.world - 1:
            trainer.losses = lambda micro, loss: fault(partial(healthy, loss=loss), micro)
        try:
            rows = [] if trainer.rank else self.rows
            return [measured(trainer.step(rows, self.algorithm.loss)) for _ in range(count)]
        finally:
            trainer.losses = healthy


def not_a_number(healthy, micro):
    loss, parts = healthy(micro)
    return loss * float("nan"), parts | {"loss": float("nan")}


def bad_gradient(healthy, micro):
    loss, parts = healthy(micro)
    return loss + (loss - loss.detach()).abs().sqrt(), parts


def out_of_memory(healthy, micro):
    if micro.nodes.token_ids_N.numel() > 64:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
    return healthy(micro)


def weights(trainer: DeepSpeedTrainer) -> list[float]:
    return [float(tensor.double().sum()) for _, tensor in trainer.weights()]


def resumed(bench: Bench, checkpoint_: Path, stage: int) -> list[dict[str, float]]:
    """The steps after a checkpoint, under another ZeRO stage."""
    again = bench.under(stage)
    trainer = again.trainer(checkpoint_)
    checkpoint.restore(trainer, checkpoint_)
    return again.steps(trainer, 4)


def watch(bench: Bench, out: Path) -> dict[str, object]:
    trainer, unbroken = bench.trainer(), bench.trainer()
    seen: dict[str, object] = {"unbroken": bench.steps(unbroken, 6)}
    first = bench.steps(trainer, 2)
    before = weights(trainer)
    seen["nan"] = bench.steps(trainer, 1, not_a_number) + bench.steps(trainer, 1, bad_gradient)
    seen["untouched"] = weights(trainer) == before
    saved(trainer, out / "checkpoints", RunState(2), keep=1)
    after = bench.steps(trainer, 2)
    if trainer.stage < 2:
        after += bench.steps(trainer, 1, out_of_memory)
    seen["broken"] = first + after
    path = checkpoint.latest(out / "checkpoints")
    assert path is not None
    stages = {trainer.stage, (trainer.stage + 1) % 4, (trainer.stage + 2) % 4}
    seen["resumed"] = {stage: resumed(bench, path, stage) for stage in sorted(stages)}
    return seen


def watch_all(out: Path, model: Path, *variants: str) -> None:
    """Writes OUT/<stage>-<dtype>[-<lora>]/<rank>.json for each variant STAGE:DTYPE[:LORA]."""
    for variant in variants:
        folder = out / variant.replace(":", "-")
        seen = watch(Bench(model, *variant.split(":")), folder)
        rank = torch.distributed.get_rank()
        (folder / f"{rank}.json").write_text(json.dumps(seen))

"""A kept checkpoint, and the step that a learner makes from it on groups of the kept store."""

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learner.checkpoint import CHECKPOINTS, load_run
from r3l.records import Group
from r3l.run.config import load
from tests.kept import KEPT
from tests.learner.fakes import measured
from tests.r3l.training.fakes import rows_of

SETTINGS = (
    "algorithm.group_size=4",
    "learner.steps=9",
    "learner.lr=1e-2",
    "learner.schedule=cosine",
    "learner.warmup_steps=2",
    "learner.dtype=float32",
)
MEASURED = ("loss", "grad_norm", "lr", "trained_tokens")
"""What is compared of a step. No clock is in it."""


def unpack(version: str, run: Path) -> dict[str, Any]:
    """Write the kept checkpoint into a run's folder; what is known of it."""
    (run / CHECKPOINTS).mkdir(parents=True)
    with tarfile.open(KEPT / version / "checkpoint.tar.gz") as packed:
        packed.extractall(run / CHECKPOINTS, filter="data")
    return dict(json.loads((KEPT / version / "checkpoint.json").read_text("utf-8")))


def next_step(checkpoint: Path, groups: Sequence[Group]) -> dict[str, Any]:
    """Resume from a checkpoint and make one step: its numbers, and how far each weight moved, which
    the optimizer's moments decide."""
    config = load(None, SETTINGS)
    algorithm = config.algorithm
    trainer, state = load_run(checkpoint, checkpoint, config.learner, algorithm, config.seed)
    before = {name: tensor.double() for name, tensor in trainer.weights()}
    numbers = measured(trainer.step(rows_of(groups, algorithm), algorithm.loss))
    moved = {name: float((t.double() - before[name]).norm()) for name, t in trainer.weights()}
    made = {"step": state.version + 1, "applied": bool(numbers["applied"]), "moved": moved}
    return made | {name: numbers[name] for name in MEASURED}

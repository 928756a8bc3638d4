"""A finished run, entered again: its optimizer steps, executed once more.

checkpoint before the step ─► the ledger's draws, step by step ─► loss and weights, compared

What is the same as in the run is compared: loss and gradient norm with progress.jsonl, weights with
the checkpoint and the journal, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from buffer import Draw
from buffer.storage.store import Store
from buffer.tools import store_reads
from envs.builtin.policy import model_path
from learner import checkpoint
from learner.offline.rebuild import tensors_of
from learner.step.batch import Row
from learner.step.model import resolve_dtype
from learner.step.trainer import StepResult, Trainer
from r3l.errors import NotFound, UserError
from r3l.files.run_folder import JOURNAL, RunFolder
from r3l.model_folder import check_model_folder, model_digest
from r3l.weights.journal import Journal
from r3l.weights.low_rank import PREFIX

Metrics = Mapping[str, float]
EXACT = ("loss", "grad_norm")


@dataclass(frozen=True)
class Replayed:
    """A step that was executed again. `same`: what was compared with the run, and whether it was
    equal; empty if the run left nothing to compare with."""

    step: int
    metrics: dict[str, float]
    same: dict[str, bool]

    def line(self) -> str:
        """One line for people."""
        values = f"loss {self.metrics['learner/loss']:.9g}, gradient norm "
        values += f"{self.metrics['learner/grad_norm']:.6g}"
        told = ", ".join(f"{what} {'same' if ok else 'DIFFERS'}" for what, ok in self.same.items())
        return f"step {self.step}: {values}; {told or 'the run left nothing to compare with'}"


class ReplayedRun:
    """The trainer of a run as it was before `step`, from the newest checkpoint before it.

    Raises UserError, one line, for a step that is not in the ledger, and a store or model
    that is missing.
    """

    def __init__(self, run: Path, step: int) -> None:
        self.run, self.step = run, step
        self.folder = RunFolder(run)
        self.config = self.folder.settings_of(step)
        self.store = open_store(run)
        try:
            self.draw_of(step)
            self.lines = {line.step: line.metrics for line in self.folder.history().steps}
            self.trainer, self.version = self._trainer(step)
        except BaseException:
            self.store.close()
            raise

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def draw_of(self, step: int) -> Draw:
        """The draw that a step was trained on. Raises UserError if any of it was evicted."""
        try:
            return store_reads.trained_draw(self.store, step)
        except NotFound as error:
            raise UserError(f"store {self.store.folder}: {error}") from None

    def rows(self, draw: Draw) -> list[Row]:
        """The rows of a draw at the trainer's present weights."""
        return self.trainer.rows(draw)

    def advance(self) -> Replayed:
        """Execute the next step."""
        draw, number = self.draw_of(self.version + 1), self.version + 1
        line = self.lines.get(number, {})
        self.trainer.budget = int(line.get("learner/tokens_per_micro_batch", self.trainer.budget))
        torch.set_num_threads(int(line.get("learner/threads", torch.get_num_threads())))
        result = self.trainer.step(self.rows(draw))
        if not result.applied:
            raise UserError(
                f"step {number}: its loss or gradient is not finite here, but the run applied it; "
                "is this the machine and the version of r3l that trained it?"
            )
        self.version = number
        return Replayed(number, result.metrics, self._compare(number, result, line))

    def _compare(self, number: int, result: StepResult, line: Metrics) -> dict[str, bool]:
        tags = {name: f"learner/{name}" for name in EXACT}
        same = {
            name.replace("grad_norm", "gradient norm"): line[tag] == result.metrics[tag]
            for name, tag in tags.items()
            if tag in line
        }
        if number == self.step:
            kept = stored_weights(self.run, number)
            same |= {f"weights of the {where}": _equal(self.trainer, its) for where, its in kept}
        return same

    def _trainer(self, step: int) -> tuple[Trainer, int]:
        """A trainer before `step` or earlier, and its version."""
        model = model_path(self.config.model)
        check_model_folder(model, f"model {self.config.model}")
        start = checkpoint.latest(self.run / checkpoint.CHECKPOINTS, below=step)
        version = 0 if start is None else checkpoint.read_state(start).version
        for number in range(version + 1, step):
            self.draw_of(number)
            if self.folder.settings_of(number) != self.config:
                raise UserError(
                    f"step {step}: the run's settings changed after step {number}, and the newest "
                    f"checkpoint before it is of step {version}; keep more of them with "
                    "learner.keep_checkpoints"
                )
        learner, adapted = self.config.learner, self.config.learner.lora.rank > 0
        if start is not None:
            dtype = resolve_dtype(learner.dtype)
            checkpoint.check(start, learner, dtype=dtype, model_digest=model_digest(model))
        trainer = Trainer(
            model if adapted else start or model,
            learner,
            self.config.algorithm.build(),
            seed=self.config.seed,
            reference=model,
            adapter=start if adapted else None,
        )
        if start is not None:
            checkpoint.restore(trainer, start)
        return trainer, version


def open_store(run: Path) -> Store:
    """The store of a run, to read. Raises UserError."""
    folder = run / "buffer"
    if not (folder / "data.mdb").is_file():
        raise UserError(f"run {run}: no store in {folder}; give the folder of a run with its store")
    return Store(folder, read_only=True)


def stored_weights(run: Path, version: int) -> list[tuple[str, dict[str, Tensor]]]:
    """The weights of a version as the run left them, by where: its checkpoint, its journal."""
    from safetensors.torch import load_file

    found = []
    file = run / "checkpoints" / f"step-{version:06d}" / "model.safetensors"
    if file.is_file():
        found.append(("checkpoint", load_file(file)))
    journal = Journal(run / JOURNAL)
    if version in journal.held():
        found.append(("journal", tensors_of(*journal.rebuild(version))))
    return found


def _equal(trainer: Trainer, kept: Mapping[str, Tensor]) -> bool:
    """Whether the trainer's weights, or its adapters if those were kept alone, have these bytes in
    the kept format."""
    names = set[str]()
    alone = all(name.startswith(PREFIX) for name in kept)
    for name, tensor in trainer.published()[0] if alone else trainer.weights():
        theirs = kept.get(name)
        if theirs is None or tensor.shape != theirs.shape:
            return False
        ours = tensor.detach().to(device="cpu", dtype=theirs.dtype).contiguous()
        if not torch.equal(ours.view(torch.uint8), theirs.contiguous().view(torch.uint8)):
            return False
        names.add(name)
    return names == set(kept)

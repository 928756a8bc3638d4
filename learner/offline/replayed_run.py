"""Recomputes the optimizer steps of a finished run.

checkpoint before the step ─► each step on the draw in the ledger ─► loss and weights, compared

Compares bit for bit: loss and gradient norm with progress.jsonl, weights with the checkpoint and
the journal.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from buffer import Draw
from buffer.storage.store import Store
from buffer.storage.store_path import has_store
from buffer.tools import store_reads
from learner import checkpoint
from learner.offline.rebuild import tensors_of
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from learner.step.draw_rows import make_rows
from r3l.errors import NotFound, UserError
from r3l.models.model_folder import check_model_folder, model_digest, read_tokenizer
from r3l.models.model_path import model_path
from r3l.rollout.chat import ChatFormat
from r3l.run.files.run_folder import JOURNAL, RunFolder
from r3l.training.measures.processor import differences, facts, fix_threads
from r3l.training.model import resolve_dtype
from r3l.weights.journal import Journal
from r3l.weights.low_rank import PREFIX

EXACT = {"loss": "learner/loss", "gradient norm": "learner/grad_norm"}


@dataclass(frozen=True)
class Replayed:
    """A recomputed step. `same`: for each value that the run recorded, whether the recomputed value
    is equal."""

    step: int
    metrics: dict[str, float]
    same: dict[str, bool]

    def line(self) -> str:
        values = f"loss {self.metrics['learner/loss']:.9g}, gradient norm "
        values += f"{self.metrics['learner/grad_norm']:.6g}"
        parts = [f"{what} {'same' if same else 'DIFFERS'}" for what, same in self.same.items()]
        return f"step {self.step}: {values}; {', '.join(parts) or 'nothing to compare with'}"


class ReplayedRun:
    """Recomputes a run's steps, starting at the newest checkpoint before `step`. Raises UserError
    if the step, the store or the model is missing."""

    def __init__(self, run: Path, step: int) -> None:
        self.run, self.step = run, step
        self.folder = RunFolder(run)
        self.config = self.folder.settings_of(step)
        if not has_store(self.folder.store):
            raise UserError(
                f"run {run}: has no store in {self.folder.store}; name the folder of a run "
                "that has a store"
            )
        self.store = Store(self.folder.store, read_only=True)
        try:
            self.draw_of(step)
            self.lines = {line.step: line.metrics for line in self.folder.history().steps}
            self.trainer, self.version = self._trainer(step)
        except BaseException:
            self.store.close()
            raise

    def close(self) -> None:
        self.store.close()

    def draw_of(self, step: int) -> Draw:
        """Reads the draw of a trained step. Raises UserError if the step is not in the ledger, or
        if an attempt is lost."""
        try:
            return store_reads.trained_draw(self.store, step)
        except NotFound as error:
            raise UserError(f"store {self.store.folder}: {error}") from None

    def advance(self) -> Replayed:
        """Recomputes one more optimizer step and compares it with the run's records."""
        draw, number = self.draw_of(self.version + 1), self.version + 1
        line = self.lines.get(number, {})
        # The lines of old steps may be removed; these two values rarely change.
        earlier = [step for step in self.lines if step <= number]
        like = self.lines[earlier[-1]] if earlier else line
        self.trainer.budget = int(like.get("learner/tokens_per_micro_batch", self.trainer.budget))
        fix_threads(int(like.get("learner/threads", 0)))
        algorithm = self.config.algorithm
        made = make_rows(self.trainer, algorithm, draw, lambda: self.chat)
        result = self.trainer.step(made.rows, algorithm.loss)
        if not result.applied:
            raise UserError(
                f"step {number}: its loss or gradient is not finite here, but the run applied the "
                "step; replay on a machine like the run's, with the r3l that trained it"
            )
        self.version, found = number, result.metrics
        same = {name: line[tag] == found[tag] for name, tag in EXACT.items() if tag in line}
        if number == self.step:
            for place, weights in _stored_weights(self.run, number):
                same[f"weights of the {place}"] = _equal(self.trainer, weights)
        return Replayed(number, found, same)

    def elsewhere(self) -> str:
        """Describes how this machine differs from the one that made the next step; "" if it does
        not, or if the run did not record its machine."""
        there = self.folder.machine_of(self.version + 1)
        differs = differences(there, facts(self.trainer.device, self.trainer.world))
        return differs and f"recorded elsewhere, so the last bits may differ: {differs}"

    @cached_property
    def chat(self) -> ChatFormat:
        """The chat format of the run's model."""
        model, earlier = model_path(self.config.model), self.config.actor.earlier_reasoning
        tokenizer = read_tokenizer(model, f"model {self.config.model}")
        return ChatFormat(tokenizer, earlier_reasoning=earlier)

    def _trainer(self, step: int) -> tuple[DeepSpeedTrainer, int]:
        """Loads the newest checkpoint before `step`, or the model if there is none. Returns
        (trainer, version)."""
        model = model_path(self.config.model)
        check_model_folder(model, f"model {self.config.model}")
        start = checkpoint.latest(self.run / checkpoint.CHECKPOINTS, below=step)
        version = 0 if start is None else checkpoint.read_state(start).version
        for number in range(version + 1, step):
            self.draw_of(number)
            if self.folder.settings_of(number) != self.config:
                raise UserError(
                    f"step {step}: cannot be recomputed; step {number} had other settings, and no "
                    "checkpoint is between the two; in future runs, raise learner.keep_checkpoints"
                )
        learner = self.config.learner
        if start is not None:
            dtype, digest = resolve_dtype(learner.dtype), model_digest(model)
            checkpoint.check_resumable(start, learner, dtype=dtype, model_digest=digest)
        algorithm = self.config.algorithm
        return checkpoint.load_run(start, model, learner, algorithm, self.config.seed)[0], version


def _stored_weights(run: Path, version: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yields (place, weights) for each place that holds the version: checkpoint, journal."""
    file = run / checkpoint.CHECKPOINTS / f"step-{version:06d}" / "model.safetensors"
    if file.is_file():
        yield "checkpoint", load_file(file)
    journal = Journal(run / JOURNAL)
    if version in journal.held():
        yield "journal", tensors_of(*journal.rebuild(version))


def _equal(trainer: DeepSpeedTrainer, stored: Mapping[str, Tensor]) -> bool:
    """Returns whether the trainer's weights equal the stored weights bit for bit, in the stored
    dtype. If only adapters are stored, compares adapters."""
    names = set[str]()
    apart = all(name.startswith(PREFIX) for name in stored)
    for name, tensor in trainer.published_weights()[0] if apart else trainer.weights():
        other = stored.get(name)
        if other is None or tensor.shape != other.shape:
            return False
        own = tensor.detach().to(device="cpu", dtype=other.dtype).contiguous()
        if not torch.equal(own.view(torch.uint8), other.contiguous().view(torch.uint8)):
            return False
        names.add(name)
    return names == set(stored)

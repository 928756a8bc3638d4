"""The learner's loop.

    draw B complete groups ─► rows ─► optimizer step ─► commit ─► publish weights
         ▲                                                │
         └── waits for the buffer ◄── figures, evaluation, checkpoint

Rank 0 talks to the buffer, the publisher and TensorBoard (learner.rank0); the other ranks
receive the groups and take part in the step.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner import checkpoint
from learner.checkpoint import State
from learner.metrics.group_metrics import group_figures, staleness_figures
from learner.rank0 import SKIPPED, Conductor, candidate_folder, check_tokens
from learner.ranks import meet, share_groups
from learner.step.batch import rows_of
from learner.step.out_of_memory import keep_budget
from learner.step.trainer import Trainer
from learner.watchdog import sign
from r3l.algorithms.algorithm import Algorithm
from r3l.config import RunConfig
from r3l.errors import TrainingStopped
from r3l.records import Group

log = logging.getLogger(__name__)


@dataclass
class Training:
    """One rank's part in a run; `conductor` is None on every rank but 0.

    `state` is what the run starts from; `saved` the version of the newest checkpoint.
    """

    trainer: Trainer
    algorithm: Algorithm
    config: RunConfig
    conductor: Conductor | None
    tokenizer: Any
    run: Path
    state: State
    saved: int = -1

    def execute(self) -> int:
        """Train to `config.learner.steps`; returns the version reached.

        Returns early when the conductor was stopped; a checkpoint and the model are written in
        any case. Raises TrainingStopped after too many steps in a row that were not finite, or
        where a safety rule said so.
        """
        version, bad = self.state.version, list[list[str]]()
        self._begin(version)
        while version < self.config.learner.steps:
            applied, group_ids = self._step(version)
            if not group_ids:
                break
            if applied:
                version, bad = version + 1, []
                self._keep(version)
                continue
            bad.append(group_ids)
            if len(bad) == self.config.learner.bad_steps_in_a_row:
                self._give_up(version, bad)
        if version != self.saved:
            self._save(version)
        self._end(version)
        return version

    def _give_up(self, version: int, bad: list[list[str]]) -> None:
        """Keep what was reached and end the run, naming the groups of the skipped steps."""
        if version != self.saved:
            self._save(version)
        names = "; ".join(" ".join(group_ids) for group_ids in bad)
        raise TrainingStopped(
            f"{len(bad)} steps in a row had a loss or gradient that is not finite; the groups, "
            f"step by step: {names} (see {SKIPPED})",
            cause="not_finite",
        )

    def _step(self, version: int) -> tuple[bool, list[str]]:
        """One batch: (whether the weights changed, its group ids); no ids: told to stop.

        Consumes a draw, produces a commit or a discard; waits for actors to complete groups.
        """
        conductor = self.conductor
        draw, waited = conductor.draw(self.trainer, version) if conductor else (None, 0.0)
        drawn = (draw.groups, draw.weights) if draw is not None else ((), ())
        groups, weights = share_groups(self.trainer, *drawn)
        if not groups:
            return False, []
        sign(f"step {version + 1}")
        check_tokens(groups, self.trainer.vocabulary)
        figures, applied = self._train_on(groups, weights)
        if conductor is not None and draw is not None:
            strict = self.config.algorithm.verified_requires_success
            figures |= group_figures(groups, requires_success=strict)
            figures |= staleness_figures(groups, version)
            figures["learner/wait_s"] = waited
            figures["learner/idle_share"] = waited / (waited + figures["learner/step_s"])
            if applied:
                conductor.finish_step(self.trainer, draw, version + 1, figures)
            else:
                conductor.skip_step(draw, version, figures)
        elif applied and self.config.learner.publishes(version + 1):
            self._help_publishing()
        return applied, [group.group_id for group in groups]

    def _train_on(
        self, groups: Sequence[Group], weights: Sequence[float]
    ) -> tuple[dict[str, float], bool]:
        began, budget = time.monotonic(), self.trainer.budget
        batch = rows_of(groups, self.algorithm, weights)
        packed = time.monotonic() - began
        figures = self.trainer.step(batch)
        if self.trainer.budget != budget and self.trainer.rank == 0:
            keep_budget(self.run, self.trainer.budget)
        applied = bool(figures.pop("applied"))
        tokens = figures.pop("sum_input_tokens")
        figures = {f"learner/{k}": v for k, v in figures.items() if not k.startswith("sum_")}
        figures["learner/pack_s"] = packed
        figures["learner/tokens_per_s"] = tokens / figures["learner/step_s"]
        return figures, applied

    # ── what is kept ────────────────────────────────────────────────────────────────────

    def _begin(self, version: int) -> None:
        sign("to begin")
        if version == 0:
            self._keep_candidate(0)
        else:
            self.saved = version
        if self.conductor is not None:
            self.conductor.begin(self.trainer, self.state)
        else:
            self._help_publishing()
        meet(self.trainer)

    def _help_publishing(self) -> None:
        """Rank 0 is publishing; where the weights are sharded that takes every rank."""
        with self.trainer.full_weights():
            pass

    def _keep(self, version: int) -> None:
        """Checkpoint and evaluation, where this version is due for them."""
        every, last = self.config.eval.every, self.config.learner.steps
        if every and version % every == 0 and version != last:
            self._keep_candidate(version)
            if self.conductor is not None:
                self.conductor.evaluate(version)
        if version % self.config.learner.checkpoint_every == 0:
            self._save(version)

    def _end(self, version: int) -> None:
        """The final model, then its evaluation."""
        self._save_model(self.run / "model")
        if version == self.config.learner.steps:
            self._keep_candidate(version)
        if self.conductor is not None:
            self.conductor.end(self.trainer, version)
        meet(self.trainer)
        if self.conductor is not None and self.conductor.stop_cause:
            raise TrainingStopped(f"safety: {self.conductor.stop_cause}", cause="safety")

    def _keep_candidate(self, version: int) -> None:
        """The weights of an evaluation, until it is known whether they are the best."""
        if self.config.learner.keep_best and self.config.eval.tasks:
            self._save_model(candidate_folder(self.run, version))

    def _save_model(self, folder: Path) -> None:
        """A Hugging Face folder, whole or as it was before; a collective."""
        sign(f"to save {folder}")
        building = folder.with_name(f".building-{folder.name}")
        self.trainer.save_model(building)
        if self.trainer.rank == 0:
            self.tokenizer.save_pretrained(building)
            if folder.exists():
                shutil.rmtree(folder)
            building.rename(folder)

    def _save(self, version: int) -> None:
        sign(f"checkpoint {version}")
        state = self.conductor.state(version) if self.conductor is not None else State(version)
        keep = self.config.learner.keep_checkpoints
        checkpoint.save(self.trainer, self.run / "checkpoints", state, self.tokenizer, keep)
        self.saved = version

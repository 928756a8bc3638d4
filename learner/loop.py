"""The learner's loop, the same on every rank.

    draw B complete groups ─► rows ─► optimizer step ─► finish: commit, publish weights, metrics
         ▲                                  │ not finite                    │
         │                                  └─► skip: discard the groups    ▼
         └──────────────────────────────────────┴──────── evaluation, checkpoint (if due)

`rank` draws, finishes, skips and evaluates: learner.rank0.Rank0 talks to the buffer and the actors,
learner.ranks.Follower receives the same batch and takes part in the collectives.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from buffer import Draw
from learner import checkpoint
from learner.checkpoint import CHECKPOINTS, Checkpoints, RunState
from learner.checkpoint_command import CheckpointCommand
from learner.evaluator import candidate_folder
from learner.rank0 import Rank0
from learner.ranks import Follower, meet, still_waiting
from learner.step.batch import weight_metrics
from learner.step.trainer import StepLeft, StepResult, Trainer
from learner.watchdog import heartbeat
from r3l.algorithms.algorithm import Algorithm
from r3l.config import RunConfig
from r3l.errors import TrainingStopped, UserError
from r3l.files.run_folder import BEST, RunFolder


@dataclass
class Training:
    """One rank's part in a training run that starts from `state`."""

    trainer: Trainer
    algorithm: Algorithm
    config: RunConfig
    rank: Rank0 | Follower
    tokenizer: Any
    run: Path
    state: RunState

    def __post_init__(self) -> None:
        learner, folder = self.config.learner, self.run / CHECKPOINTS
        self.saved_at = time.monotonic()
        self.command: CheckpointCommand | None = None
        if learner.on_checkpoint and self.trainer.rank == 0:
            self.command = CheckpointCommand(learner.on_checkpoint, learner.on_checkpoint_s)
        self.checkpoints = Checkpoints(
            self.trainer, folder, self.tokenizer, learner.keep_checkpoints, self.command
        )

    def execute(self) -> int:
        """Trains to `config.learner.steps`; returns the version reached. If rank 0 is stopped, it
        leaves its step, but still writes a checkpoint of the last one and the model. Raises
        TrainingStopped after too many skipped steps in a row."""
        try:
            version = self._train()
        except TrainingStopped:
            self._finish_commands()
            raise
        self._finish_commands()
        return version

    def _train(self) -> int:
        version, skipped = self.state.version, list[Draw]()
        self.trainer.leaves = lambda: self.rank.stopped
        self._begin(version)
        try:
            while version < self.config.learner.steps:
                draw = self.rank.draw(version)
                if draw is None:
                    break
                random = torch.get_rng_state(), torch.cuda.get_rng_state_all()
                try:
                    result = self._train_on(draw)
                except StepLeft:  # a resumed run makes the same step
                    torch.set_rng_state(random[0])
                    torch.cuda.set_rng_state_all(random[1])
                    break
                if result.applied:
                    version, skipped = version + 1, []
                    self.rank.finish_step(draw, version, result)
                    self._evaluate_and_save(version)
                else:
                    self.rank.skip_step(draw, version, result)
                    skipped.append(draw)
                    self._check_skipped(version, skipped)
            self._end(version)
        finally:
            self.checkpoints.close()
        return version

    def _begin(self, version: int) -> None:
        heartbeat("to begin")
        if version == 0:
            self._keep_candidate(0)
        else:
            self.checkpoints.saved = version
        self.rank.begin(self.state)

    def _train_on(self, draw: Draw) -> StepResult:
        """Makes one optimizer step on a draw."""
        heartbeat(f"step {draw.version + 1}")
        began = time.monotonic()
        rows = self.trainer.rows(draw)
        packed = time.monotonic() - began
        result = self.trainer.step(rows)
        self.trainer.check_weights(draw.version + 1, result.metrics["learner/grad_norm"])
        if result.out_of_memory:
            RunFolder(self.run).keep_token_budget(self.trainer.budget)
        result.metrics["learner/pack_s"] = packed
        if self.command:
            result.metrics["learner/on_checkpoint_failed"] = float(self.command.failed)
        result.metrics.update(weight_metrics(rows, self.algorithm.sft_weight))
        return result

    def _evaluate_and_save(self, version: int) -> None:
        """Starts an evaluation of this version and saves a checkpoint, each if it is due."""
        every, last = self.config.eval.every, self.config.learner.steps
        if every and version % every == 0 and version != last:
            self._keep_candidate(version)
            self.rank.evaluate(version)
        late = time.monotonic() - self.saved_at > 60 * self.config.learner.checkpoint_minutes
        if self.config.learner.saves(version) or self.trainer.on_any_rank(late):
            self._save(version)

    def _check_skipped(self, version: int, skipped: list[Draw]) -> None:
        """Ends the run after too many skipped steps in a row. The error names their groups."""
        limit = self.config.learner.bad_steps_in_a_row
        if len(skipped) < limit:
            return
        self._save(version)
        names = "; ".join(" ".join(group.group_id for group in draw.groups) for draw in skipped)
        raise TrainingStopped(
            f"{limit} steps in a row (learner.bad_steps_in_a_row) had a loss or gradient that is "
            f"not finite; inspect their groups, also listed in skipped.jsonl: {names}",
            cause="not_finite",
        )

    def _end(self, version: int) -> None:
        """Saves the last checkpoint and the final model, then evaluates it."""
        self._save(version)
        if not checkpoint.save_model(self.trainer, self.run / "model", self.tokenizer, version):
            raise UserError(
                f"{self.run / 'model'}: the trained model could not be written; free disk space "
                "and run again with --resume"
            )
        if self.command:
            self.command.submit(self.run / "model", version)
        if version == self.config.learner.steps:
            self._keep_candidate(version)
        self.rank.end(version)

    def _save(self, version: int) -> None:
        """Saves a checkpoint of `version`, unless it is already saved."""
        if version != self.checkpoints.saved or not self.checkpoints.finish():
            self.checkpoints.save(self.rank.state(version))
            self.saved_at = time.monotonic()

    def _finish_commands(self) -> None:
        """Runs the user's command on the best model, and waits for the last commands."""
        if self.command:
            if (self.run / BEST).is_dir():
                self.command.submit(self.run / BEST, self.checkpoints.saved)

            def stopped() -> bool:
                still_waiting(self.trainer, "waiting for learner.on_checkpoint")
                return self.rank.stopped

            self.command.finish(stopped)
        if self.config.learner.on_checkpoint:
            meet(self.trainer)

    def _keep_candidate(self, version: int) -> None:
        """Saves the weights under evaluation until their result is known."""
        if self.config.learner.keep_best and self.config.eval.tasks:
            folder = candidate_folder(self.run, version)
            checkpoint.save_model(self.trainer, folder, self.tokenizer, version)

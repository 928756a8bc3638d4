"""The learner's loop, the same on every rank.

    draw B complete groups ─► rows ─► optimizer step ─► finish: commit, copy weights, report
         ▲                                  │ not finite                    │
         │                                  └─► skip: discard the groups    ▼
         └──────────────────────────────────────┴──────── evaluation, checkpoint (if due)

Only rank 0 talks to the buffer and the actors (learner.rank0), while the other ranks wait.
Rank 0 alone has the batch and makes its rows. All ranks take part in the step and the collectives.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from buffer import Draw
from learner import checkpoint
from learner.checkpoint import CHECKPOINTS, Checkpoints, RunState
from learner.checkpoint_command import CheckpointCommand
from learner.evaluation.evaluator import candidate_folder
from learner.rank0 import Rank0
from learner.ranks import meet, receive_draw, share_draw, still_waiting
from learner.step.deepspeed_trainer import DeepSpeedTrainer, StepLeft
from learner.step.draw_rows import DrawRows, make_rows, trained_attempts
from learner.step.tensor_file import drain
from learner.watchdog import heartbeat
from r3l.algorithms.algorithm import Algorithm
from r3l.errors import TrainingStopped, UserError
from r3l.rollout.chat import ChatFormat
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import BEST, RunFolder
from r3l.training.step_loss import StepResult


@dataclass
class Training:
    """Trains one rank's part of a run, starting from `state`. `rank0`: set on rank 0 only."""

    trainer: DeepSpeedTrainer
    algorithm: Algorithm
    config: RunConfig
    rank0: Rank0 | None
    tokenizer: Any
    run: Path
    state: RunState

    def __post_init__(self) -> None:
        learner, folder = self.config.learner, self.run / CHECKPOINTS
        self.saved_at = time.monotonic()
        self.command: CheckpointCommand | None = None
        if learner.on_checkpoint and self.rank0:
            self.command = CheckpointCommand(learner.on_checkpoint, learner.on_checkpoint_s)
        self.checkpoints = Checkpoints(
            self.trainer, folder, self.tokenizer, learner.keep_checkpoints, self.command
        )

    def execute(self) -> None:
        """Trains all steps. If asked to stop, drops the current step and saves the last finished
        version. Raises TrainingStopped after too many skipped steps in a row."""
        try:
            self._train()
        except TrainingStopped:
            self._finish_commands()
            raise
        self._finish_commands()

    def _train(self) -> None:
        version, skipped = self.state.version, list[Draw]()
        self.trainer.leaves = self._stopped
        self._begin(version)
        try:
            while version < self.config.learner.steps:
                draw = self._draw(version)
                if draw is None:
                    break
                random = torch.get_rng_state(), torch.cuda.get_rng_state_all()
                try:
                    made, result = self._train_on(draw)
                except StepLeft:  # so that a resumed run makes the same step
                    torch.set_rng_state(random[0])
                    torch.cuda.set_rng_state_all(random[1])
                    break
                if result.applied:
                    version, skipped = version + 1, []
                    self.finish_step(made, version, result)
                    self._evaluate_and_save(version)
                else:
                    skipped.append(draw)
                    self._skip_step(skipped, version, result)
            self._end(version)
            if self.rank0 and self.rank0.unfit:
                raise self.rank0.unfit
        finally:
            self.checkpoints.close()

    def _begin(self, version: int) -> None:
        heartbeat("to begin")
        if version == 0:
            self._keep_candidate(0)
        else:
            self.checkpoints.saved = version
        self._on_rank_0(lambda rank0: rank0.begin(self.state))
        self._publish(version)
        if version == 0:
            self._on_rank_0(lambda rank0: rank0.evaluate(0))

    def _on_rank_0(self, work: Callable[[Rank0], object]) -> None:
        """Calls `work` on rank 0; the other ranks wait until it returns. Collective."""
        if self.rank0:
            work(self.rank0)
        meet(self.trainer)

    def _stopped(self) -> bool:
        """Returns whether this rank is rank 0 and was asked to stop."""
        return self.rank0 is not None and self.rank0.stopped

    def _draw(self, version: int) -> Draw | None:
        """Waits for the next batch, whose groups only rank 0 has. Returns None if the run must
        stop."""
        if self.rank0 is None:
            return receive_draw(self.trainer)
        return share_draw(self.trainer, self.rank0.draw(version))

    def finish_step(self, made: DrawRows[Draw], version: int, result: StepResult) -> None:
        """Commits a trained batch, publishes the weights if due, and reports the step."""
        draw, attempts = made.batch, trained_attempts(made.rows, result.reliance)
        self._on_rank_0(lambda rank0: rank0.commit(draw, version, attempts))
        publishes = self.config.learner.publishes(version)
        published = self._publish(version) if publishes and version > 1 else {}
        self._on_rank_0(lambda rank0: rank0.report(draw, version, result, published))
        if publishes and version == 1:  # after the evaluation of version 0, which `report` awaits
            self._publish(version)

    def _publish(self, version: int) -> dict[str, float]:
        """Gathers the weights and begins to publish them, once the previous version is published.
        Collective. Returns metrics on rank 0, an empty dict on every other rank."""
        self._on_rank_0(Rank0.finish_publication)
        weights, shapes = self.trainer.published_weights()
        metrics = self.rank0.publish(version, weights, shapes) if self.rank0 else {}
        drain(weights)
        return metrics

    def _train_on(self, draw: Draw) -> tuple[DrawRows[Draw], StepResult]:
        heartbeat(f"step {draw.version + 1}")
        made = make_rows(self.trainer, self.algorithm, draw, lambda: self.chat)
        result = self.trainer.step(made.rows, self.algorithm.loss)
        self.trainer.check_weights(draw.version + 1, result.metrics["learner/grad_norm"])
        if result.out_of_memory:
            RunFolder(self.run).keep_token_budget(self.trainer.budget)
        if self.command:
            result.metrics["learner/on_checkpoint_failed"] = float(self.command.failed)
        result.metrics.update(made.metrics)
        return made, result

    @cached_property
    def chat(self) -> ChatFormat:
        """The chat format of the run's model."""
        earlier = self.config.actor.earlier_reasoning
        return ChatFormat(self.tokenizer, earlier_reasoning=earlier)

    def _evaluate_and_save(self, version: int) -> None:
        """Starts an evaluation of `version` if one is due. Saves a checkpoint if one is due."""
        every, last = self.config.eval.every, self.config.learner.steps
        if every and version % every == 0 and version != last:
            self._keep_candidate(version)
            self._on_rank_0(lambda rank0: rank0.evaluate(version))
        late = time.monotonic() - self.saved_at > 60 * self.config.learner.checkpoint_minutes
        if self.config.learner.saves(version) or self.trainer.on_any_rank(late):
            self._save(version)

    def _skip_step(self, skipped: list[Draw], version: int, result: StepResult) -> None:
        """Discards `skipped[-1]`. Raises TrainingStopped if too many were skipped in a row."""
        self._on_rank_0(lambda rank0: rank0.skip_step(skipped[-1], version, result))
        limit = self.config.learner.bad_steps_in_a_row
        if len(skipped) < limit:
            return
        self._save(version)
        names = "; ".join(" ".join(draw.row.groups) for draw in skipped)
        raise TrainingStopped(
            f"{limit} steps in a row (learner.bad_steps_in_a_row) had a loss or gradient that is "
            f"not finite; inspect their groups: {names} (also listed in skipped.jsonl)",
            cause="not_finite",
        )

    def _end(self, version: int) -> None:
        """Saves the last checkpoint and the final model, then evaluates the model."""
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
        self._on_rank_0(lambda rank0: rank0.end(version))

    def _save(self, version: int) -> None:
        """Saves a checkpoint of `version`, unless it is already saved."""
        if version != self.checkpoints.saved or not self.checkpoints.finish():
            self.checkpoints.save(self.rank0.last_state if self.rank0 else RunState(version))
            self.saved_at = time.monotonic()

    def _finish_commands(self) -> None:
        """Runs the user's command on the best model. Waits until no command is running."""
        if self.command:
            if (self.run / BEST).is_dir():
                self.command.submit(self.run / BEST, self.checkpoints.saved)

            def stopped() -> bool:
                still_waiting(self.trainer, "waiting for learner.on_checkpoint")
                return self.rank0 is not None and self.rank0.interrupted

            self.command.finish(stopped)
        if self.config.learner.on_checkpoint:
            meet(self.trainer)

    def _keep_candidate(self, version: int) -> None:
        """Saves the weights of `version`, so that they can become the best model."""
        if self.config.learner.keep_best and self.config.eval.tasks:
            folder = candidate_folder(self.run, version)
            checkpoint.save_model(self.trainer, folder, self.tokenizer, version)

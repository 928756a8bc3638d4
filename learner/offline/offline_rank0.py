"""Rank 0 of a learner without actors: draws from finished stores and reports. It has the methods of
learner.rank0.Rank0."""

from __future__ import annotations

import logging
from pathlib import Path

from buffer import Draw
from buffer.tools.stored_draws import StoredDraws
from learner.checkpoint import State
from learner.metrics.group_metrics import group_metrics, replay_metrics, selection_metrics
from learner.metrics.reporter import Reporter
from learner.ranks import meet, share_draw
from learner.step.trainer import StepResult, Trainer
from learner.watchdog import heartbeat
from r3l.config import RunConfig

log = logging.getLogger(__name__)
LEDGER = "offline.jsonl"
"""One line for every draw of an offline run."""
CHECKED = 8
"""Groups of a store whose tokens are compared with their texts."""


class OfflineRank0:
    """Draws from stores, commits into `offline.jsonl` of the run, reports."""

    def __init__(
        self,
        trainer: Trainer,
        draws: StoredDraws,
        reporter: Reporter,
        config: RunConfig,
        run: Path,
    ) -> None:
        self.trainer, self.draws, self.reporter = trainer, draws, reporter
        self.config, self.run = config, run
        self.drawn = State(0)
        self.stopped = False

    def stop(self) -> None:
        """End the run at the next draw."""
        self.stopped = True

    def begin(self, state: State) -> None:
        """Take up the draws of the steps that were done."""
        self.drawn = state
        self.draws.resume(state.version)
        meet(self.trainer)
        self._gather()
        meet(self.trainer)

    def draw(self, version: int) -> Draw | None:
        """The next batch, shared with the other ranks; None if the run is to stop or the stores
        have too few groups left."""
        draw = None if self.stopped else self.draws.draw(version)
        if draw is None and not self.stopped:
            log.warning(
                "the stores have fewer than %d groups left; raise buffer.sampler.reuse (%d) to "
                "train on each more often",
                self.config.learner.groups_per_step,
                self.config.buffer.sampler.reuse,
            )
        share_draw(self.trainer, draw)
        return draw

    def finish_step(self, draw: Draw, version: int, result: StepResult) -> None:
        """Enter the draw into the ledger and report."""
        heartbeat(f"ledger of version {version}")
        self.draws.keep(draw, trained=True)
        meet(self.trainer)
        groups = tuple(group.group_id for group in draw.groups)
        self.drawn = State(version, draw.draw_id, groups, self.drawn.model_digest)
        if self.config.learner.publishes(version):
            self._gather()
        algorithm = self.config.algorithm.build()
        strict = algorithm.exploration.verified_requires_success
        metrics = {
            **result.metrics,
            **group_metrics(
                draw.groups, requires_success=strict, several=bool(self.config.env.others)
            ),
            **selection_metrics(draw.groups, algorithm),
            **replay_metrics(draw),
        }
        self.reporter.step(version, metrics, {})
        meet(self.trainer)

    def skip_step(self, draw: Draw, version: int, result: StepResult) -> None:
        """Leave a batch out for good, because its loss or gradient is not finite."""
        self.draws.keep(draw, trained=False)
        names = " ".join(group.group_id for group in draw.groups)
        log.error("step skipped, loss %r: groups %s", result.metrics["learner/loss"], names)
        meet(self.trainer)

    def evaluate(self, version: int) -> None:
        """There are no actors that could play: nothing."""
        meet(self.trainer)

    def state(self, version: int) -> State:
        """The state of the run for a checkpoint at `version`."""
        return State(version, self.drawn.draw_id, self.drawn.groups, self.drawn.model_digest)

    def end(self, version: int) -> None:
        """Wait for every rank."""
        meet(self.trainer)

    def _gather(self) -> None:
        """The collective in which the other ranks expect weights to be published."""
        for _ in self.trainer.published()[0]:
            pass

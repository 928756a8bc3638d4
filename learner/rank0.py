"""What only rank 0 of the learner does: draws, commits, publishes, evaluates, reports.

buffer ── draw ─► (train) ─► commit ─► publish weights ─► figures, safety meter, evaluations
   ▲                └─ not finite ─► discard, skipped.jsonl
   └── its restart starts here: release what was drawn, take up open evaluations
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from buffer import BufferClient, Draw
from learner.checkpoint import State
from learner.evaluate import Evaluation, Evaluator, parts
from learner.metrics.drift import SafetyMeter
from learner.metrics.group_metrics import (
    buffer_figures,
    histograms,
    mismatched_fingerprints,
    unstamped,
)
from learner.metrics.reporter import Reporter
from learner.publisher import WeightPublisher
from learner.ranks import WARN_AFTER_S, still_waiting
from learner.step.trainer import Trainer
from learner.watchdog import count_hangs, sign
from r3l.config import RunConfig
from r3l.errors import NotFound, UserError
from r3l.records import Group, Task

log = logging.getLogger(__name__)

DRAW_WAIT_S = 2.0
SKIPPED = "skipped.jsonl"
BEST, CANDIDATES = "best", "candidates"


class Conductor:
    """Consumes groups from the buffer, produces commits, weights, figures and evaluations.

    `stopped` asks it to end; `stop_cause` is set where the safety meter did.
    """

    def __init__(
        self,
        client: BufferClient,
        publisher: WeightPublisher,
        reporter: Reporter,
        config: RunConfig,
        tasks: tuple[list[Task], list[Task]],
        run: Path,
    ) -> None:
        self.client, self.publisher, self.reporter = client, publisher, reporter
        self.config, self.run = config, run
        train_tasks, eval_tasks = tasks
        for part in parts(train_tasks):
            client.add_tasks(part)
        self.evaluator = Evaluator(client, config.eval, eval_tasks)
        self.meter = SafetyMeter(config.learner.safety)
        self.fingerprints: dict[int, str] = {}
        self.generated = (time.monotonic(), 0.0)
        self.counts = Counter[str](hangs=count_hangs(run))
        self.drawn = State(0)
        self.max_staleness = config.buffer.max_staleness
        self.stopped = False
        self.stop_cause = ""

    # ── start and end ───────────────────────────────────────────────────────────────────

    def begin(self, trainer: Trainer, state: State) -> None:
        """Bring the buffer to the learner's version and offer the first weights; at version 0,
        evaluate before any training."""
        version, self.drawn = state.version, state
        self._check_ledger(state)
        rewound = self.client.set_version(version)
        released = self.client.release_draws("learner")
        if rewound or released:
            log.info("from version %d on: %d groups again", version, rewound + released)
        if state.max_staleness >= 0:
            self.max_staleness = min(self.max_staleness, state.max_staleness)
        self.client.limit_staleness(self.max_staleness)
        self.publish(trainer, version)
        self.evaluator.take_up(self.reporter.evaluated, version)
        if version == 0:
            self.evaluate(0)
            self._wait_for_evaluations(trainer)

    def _check_ledger(self, state: State) -> None:
        """Say so where the buffer is not the one the checkpoint was trained from."""
        if not state.groups:
            return
        try:
            trained = set(self.client.ledger(state.version))
        except NotFound:
            trained = set()
        if trained != set(state.groups):
            log.warning(
                "the buffer does not know step %d as the checkpoint does: another store?",
                state.version,
            )

    def end(self, trainer: Trainer, version: int) -> None:
        """Evaluate the final policy and wait for the result."""
        self._wait_for_evaluations(trainer)
        if not self.stopped and version > 0:
            self.evaluate(version)
            self._wait_for_evaluations(trainer)
        if not self.evaluator.pending:
            shutil.rmtree(self.run / CANDIDATES, ignore_errors=True)

    def state(self, version: int) -> State:
        """What a checkpoint at `version` has to remember."""
        return State(
            version,
            self.drawn.draw_id,
            self.drawn.groups,
            self.drawn.origin,
            self.max_staleness if self.max_staleness < self.config.buffer.max_staleness else -1,
        )

    # ── batches ─────────────────────────────────────────────────────────────────────────

    def draw(self, trainer: Trainer, version: int) -> tuple[Draw | None, float]:
        """Wait for a full batch of fresh groups: (draw, seconds waited); None when stopped.

        Waits for actors to complete groups; says so to the other ranks every DRAW_WAIT_S, and to
        people every WARN_AFTER_S.
        """
        began = warned = time.monotonic()
        count = self.config.learner.groups_per_step
        while not self.stopped:
            reason: list[str] = []
            draw = self.client.draw(count, version, wait_s=DRAW_WAIT_S, explain=reason.append)
            now = time.monotonic()
            if draw is not None:
                return draw, now - began
            still_waiting(trainer)
            if now - warned > WARN_AFTER_S:
                warned = now
                log.warning("learner waits %.0f s for a batch: %s", now - began, *reason)
        return None, time.monotonic() - began

    def finish_step(
        self, trainer: Trainer, draw: Draw, version: int, figures: dict[str, float]
    ) -> None:
        """Commit a trained batch, then tell everyone.

        Raises DrawExpired where the step took so long that others have had its groups: these
        weights are in no ledger then, and the learner has to start again from its checkpoint.
        """
        sign(f"commit and broadcast of version {version}")
        self.client.commit(draw.draw_id, version, version)
        groups = tuple(group.group_id for group in draw.groups)
        self.drawn = State(version, draw.draw_id, groups, self.drawn.origin)
        if self.config.learner.publishes(version):
            began = time.monotonic()
            published = self.publish(trainer, version)
            published["publish_s"] = time.monotonic() - began
            figures |= {f"weights/{name}": value for name, value in published.items()}
        self._watch(figures)
        figures |= buffer_figures(self.client.stats(), version)
        figures |= self._generation_rate(figures.get("actor/generated_tokens", 0.0))
        for alarm in mismatched_fingerprints(draw.groups, self.fingerprints):
            log.error("engines disagree about the weights of %s", alarm)
            figures["weights/mismatch"] = figures.get("weights/mismatch", 0.0) + 1
        figures["weights/unstamped"] = float(unstamped(draw.groups))
        self.counts["out_of_memory"] += int(figures.pop("learner/out_of_memory", 0.0))
        figures |= {f"learner/{name}": float(n) for name, n in self.counts.items()}
        self.reporter.step(version, figures, histograms(draw.groups, draw.version))
        self._report_evaluations(self.evaluator.collect())

    def skip_step(self, draw: Draw, version: int, figures: dict[str, float]) -> None:
        """Give up a batch whose loss or gradient is not finite; its groups are not drawn again.

        They are listed in `skipped.jsonl` of the run.
        """
        self.counts["skipped_steps"] += 1
        groups = [group.group_id for group in draw.groups]
        line = {
            "version": version,
            "time": time.time(),
            "draw": draw.draw_id,
            "loss": repr(figures["learner/loss"]),
            "grad_norm": repr(figures["learner/grad_norm"]),
            "groups": groups,
            "tasks": [group.task.task_id for group in draw.groups],
        }
        with (self.run / SKIPPED).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.client.discard(draw.draw_id, "not_finite")
        self.reporter.count("learner/skipped_steps", version, self.counts["skipped_steps"])
        log.error("step skipped, loss %s: groups %s", line["loss"], " ".join(groups))

    def _watch(self, figures: dict[str, float]) -> None:
        """Do what the safety rules say."""
        measured = {k.removeprefix("learner/"): v for k, v in figures.items()}
        for alarm in self.meter.check(measured):
            self.counts["safety_alarms"] += 1
            action = alarm.rule.action
            log.warning("safety: %s (%s)", alarm.message, action)
            if action == "lower_staleness" and self.max_staleness > self._least_staleness():
                self.max_staleness = self.client.limit_staleness(self.max_staleness - 1)
                log.warning("safety: max_staleness is %d from now on", self.max_staleness)
            elif action == "stop":
                self.stopped, self.stop_cause = True, alarm.message

    def _least_staleness(self) -> int:
        """Below it groups would be stale before the weights they need are published."""
        return self.config.learner.sync_every - 1

    def _generation_rate(self, total: float) -> dict[str, float]:
        """Tokens per second of all actors since the step before."""
        (then, before), now = self.generated, time.monotonic()
        self.generated = (now, total)
        # An actor that joined anew counts from zero again.
        return {"actor/tokens_per_s": max(total - before, 0.0) / max(now - then, 1e-6)}

    def publish(self, trainer: Trainer, version: int) -> dict[str, float]:
        """Offer the trainer's weights to the actors, in the number format of their engines."""
        name = self.config.actor.dtype
        dtype = None if name == "auto" else getattr(torch, name)
        with trainer.full_weights() as weights:
            return self.publisher.publish(version, weights, dtype)

    # ── evaluations ─────────────────────────────────────────────────────────────────────

    def evaluate(self, version: int) -> None:
        """Start an evaluation that has not been reported yet."""
        if version not in self.reporter.evaluated:
            self.evaluator.start(version)

    def _wait_for_evaluations(self, trainer: Trainer) -> None:
        ended = self.evaluator.wait(lambda: self.stopped, lambda: still_waiting(trainer))
        self._report_evaluations(ended)

    def _report_evaluations(self, ended: Iterable[Evaluation]) -> None:
        for evaluation in ended:
            # Reported last: a learner killed before that reads the evaluation again.
            keep_if_best(self.run, evaluation)
            self.reporter.evaluation(evaluation.version, asdict(evaluation))


def candidate_folder(run: Path, version: int) -> Path:
    """Where the weights of an evaluation under way are kept."""
    return run / CANDIDATES / f"step-{version:06d}"


def check_tokens(groups: Iterable[Group], vocabulary: int) -> None:
    """Raise UserError where a stored token lies outside the model's vocabulary."""
    for group in groups:
        sequences: list[Any] = [t.token_ids for t in group.trajectories]
        sequences += [s.token_ids for r in group.results for s in r.aux]
        highest = max((int(ids.max()) for ids in sequences if len(ids)), default=0)
        if highest >= vocabulary:
            raise UserError(
                f"group {group.group_id}: holds token {highest}, the model's vocabulary ends at "
                f"{vocabulary - 1}; train with the model whose tokenizer filled this buffer"
            )


def keep_if_best(run: Path, evaluation: Evaluation) -> None:
    """Move the evaluated weights to `best/` if no evaluation before had as much success.

    A kill at any moment leaves the better weights in `best/` or as a candidate, which a second
    call moves there.
    """
    candidate, best = candidate_folder(run, evaluation.version), run / BEST
    if not candidate.is_dir():
        return
    record = best / "evaluation.json"
    before = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else None
    if before is not None and evaluation.success <= before["success"]:
        shutil.rmtree(candidate)
        return
    (candidate / record.name).write_text(json.dumps(asdict(evaluation)) + "\n", encoding="utf-8")
    replaced = candidate.with_name("replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if best.exists():
        best.rename(replaced)
    candidate.rename(best)
    shutil.rmtree(replaced, ignore_errors=True)

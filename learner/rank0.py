"""Rank 0 of the learner: draws, commits, publishes, evaluates, reports.

draw from the buffer ─► (train) ─► commit ─► copy weights ─► report metrics, evaluations
                           │                       └─► published beside the next step
                           └─ loss not finite ─► discard the draw, list it in skipped.jsonl
At the start of a learner, Rank0 releases open draws and waits for unfinished evaluations again.

learner.loop calls Rank0 while the other ranks wait.
"""

import logging
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from buffer import BufferClient, BufferStats, Draw
from buffer.client.batch_memory import TOO_LARGE
from buffer.storage.stored_rows import TrainedAttempt
from learner.checkpoint import RunState
from learner.evaluation.evaluator import (
    CANDIDATES,
    Evaluation,
    Evaluator,
    in_messages,
    keep_evaluation,
    keep_if_best,
    nothing_played,
    show_wait,
)
from learner.metrics.bill_keeper import BillKeeper
from learner.metrics.buffer_metrics import actor_metrics, buffer_metrics
from learner.metrics.group_metrics import (
    group_metrics,
    histograms,
    mismatched_fingerprints,
    reuse_metrics,
    selection_metrics,
    staleness_metrics,
    time_metrics,
    unread_reflection,
)
from learner.metrics.recent_counts import RecentCounts
from learner.metrics.reporter import Reporter
from learner.metrics.reward_metrics import PaidReplies
from learner.publishing.publisher import WeightPublisher
from learner.ranks import still_waiting
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from learner.step.tensor_file import Shape
from learner.watchdog import heartbeat
from r3l.errors import (
    BufferUnavailable,
    LimitExceeded,
    NotFound,
    TrainingStopped,
    UserError,
)
from r3l.notices import notice, notice_again
from r3l.records import Group, Task
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import RunFolder, SkippedStep
from r3l.run.process.command_line import echo
from r3l.training.step_loss import StepResult, blame

log = logging.getLogger(__name__)

DRAW_WAIT_S = 2.0
PUBLISHED_S = 1.0  # between two heartbeats while the last weights are published
SAY_S, SAY_LATER_S = 5.0, 60.0
"""Seconds between notices of what a step waits for: in the process's first step, in later steps."""


class Rank0:
    """Draws and commits batches, publishes weights, evaluates and reports. Without `actors`, the
    run ends when the buffer has too few groups. `gpus`: the number of GPUs of all ranks, for the
    bill."""

    def __init__(
        self,
        trainer: DeepSpeedTrainer,
        client: BufferClient,
        publisher: WeightPublisher,
        reporter: Reporter,
        config: RunConfig,
        tasks: tuple[list[Task], list[Task]],
        run: Path,
        *,
        actors: bool = True,
        gpus: int = 0,
    ) -> None:
        self.trainer, self.actors = trainer, actors
        self.client, self.publisher, self.reporter = client, publisher, reporter
        self.config, self.run = config, run
        self.train_tasks, eval_tasks = tasks
        self.evaluator = Evaluator(client, config, eval_tasks)
        client.silent, client.waits_for_disk = self._wait_for_buffer, True
        self.fingerprints: dict[int, str] = {}
        self.paid_replies = PaidReplies()
        self.recent_counts = RecentCounts(time.monotonic(), {})
        self.counts = Counter[str](hangs=len(RunFolder(run).hangs()))
        self.last_state = RunState(0)
        self.waited_s = self.published_wait_s = 0.0
        self.is_first_step = True
        self.attempts_checked = time.monotonic()
        self.without_attempt = 0  # groups of an earlier launch
        self.stopped = self.holds_back = False
        self.unfit: TrainingStopped | None = None  # why no batch can be drawn
        self.interrupted = False  # by a signal, rather than stopped by the budget
        self.bill = BillKeeper(RunFolder(run), config, gpus=gpus, served=actors)

    def stop(self) -> None:
        """Ends the run at the next draw or micro-batch. Also ends a wait for the buffer's reply."""
        self.stopped = self.interrupted = True

    def _wait_for_buffer(self, line: str) -> None:
        """Tells the other ranks that rank 0 waits for the buffer. `line`: the heartbeat's text.
        Raises BufferUnavailable if the run was asked to stop."""
        if self.stopped:
            raise BufferUnavailable(f"stopped: {line}")
        still_waiting(self.trainer, line)

    # ── start and end ───────────────────────────────────────────────────────────────────

    def begin(self, state: RunState) -> None:
        """Tells the buffer the version, adds tasks, releases open draws, resumes evaluations."""
        version, self.last_state = state.version, state
        stats = self.client.stats()
        self._update_bill(stats)
        self.recent_counts = RecentCounts(time.monotonic(), actor_metrics(stats.actors, version))
        self.without_attempt = stats.drops.get("no_trajectories", 0)
        self._check_ledger(state)
        rewound = self.client.set_version(version)  # first: at version 0, leases are for step 1
        for message in in_messages(self.train_tasks):
            self.client.add_tasks(message)
        released = self.client.release_draws("learner")
        if rewound or released:
            log.info("at version %d: %d groups taken back or released", version, rewound + released)
        self.evaluator.take_up(self.reporter.evaluated, version, self.run)

    def _check_ledger(self, state: RunState) -> None:
        """Warns if ledger and checkpoint have different groups for the checkpoint's step."""
        if not state.groups:
            return
        try:
            trained = set(self.client.ledger(state.version))
        except NotFound:
            trained = set()
        if trained != set(state.groups):
            log.warning(
                f"step {state.version}: the buffer's ledger and the checkpoint have different "
                "groups; is this the store of the run?"
            )

    def end(self, version: int) -> None:
        """Publishes the last weights, evaluates the final policy and waits for the result."""
        self.finish_publication()
        self._wait_for_evaluations()
        if not self.stopped and version > 0:
            self.evaluate(version)
            self._wait_for_evaluations()
        with suppress(BufferUnavailable):  # of a run that was stopped
            self.bill.update(self.client.stats(), write=True)
        if not self.evaluator.pending:
            shutil.rmtree(self.run / CANDIDATES, ignore_errors=True)

    # ── batches ─────────────────────────────────────────────────────────────────────────

    def draw(self, version: int) -> Draw | None:
        """Waits for a full batch of groups. Returns None if the run must stop. If it must stop
        because the batch exceeds a limit, such as the memory, sets `unfit` to the reason, and makes
        the groups drawable again."""
        began, draw = time.monotonic(), None  # without one, the run still ends with a checkpoint
        try:
            draw = self._wait_for_batch(version)
        except BufferUnavailable:
            if not self.stopped:
                raise
        except LimitExceeded as error:
            self.client.release_draws("learner")
            self.unfit = TrainingStopped(f"step {version + 1}: {error}", cause=error.cause)
            self.stopped = True
            if error.cause == TOO_LARGE:
                self.counts["unfit_batches"] += 1
                unfit = float(self.counts["unfit_batches"])
                self.reporter.scalars(version, {"learner/unfit_batches": unfit})
        self.waited_s = time.monotonic() - began
        return draw

    def _wait_for_batch(self, version: int) -> Draw | None:
        count, noticed, said = self.config.learner.groups_per_step, time.monotonic(), ""
        while not self.stopped:
            reason: list[str] = []
            wait_s = DRAW_WAIT_S if self.actors else 0.0
            draw = self.client.draw(count, version, wait_s=wait_s, explain=reason.append)
            if draw is not None:
                if draw.recall_lost:
                    log.warning(
                        f"draw {draw.draw_id}: {draw.recall_lost} recalled attempts were evicted "
                        "and are left out; raise buffer.retention"
                    )
                return draw
            if not self.actors:
                notice(f"step {version + 1}: too few groups are left ({'; '.join(reason)})")
                return None
            still_waiting(self.trainer)
            self.publisher.published()  # without new weights, the wait would never end
            self._check_attempts()
            line = f"step {version + 1}: {'; '.join(reason)}"
            words = re.sub(r"\d+", "", line)  # said again only later, if just its numbers change
            soon = self.is_first_step and words != said
            if (now := time.monotonic()) - noticed > (SAY_S if soon else SAY_LATER_S):
                noticed, said = now, words
                show_wait(line, self.client.stats())
        return None

    def _check_attempts(self) -> None:
        """Raises UserError if every attempt of the run's first groups failed."""
        if self.attempts_checked + DRAW_WAIT_S < time.monotonic():
            self.attempts_checked, stats = time.monotonic(), self.client.stats()
            self._update_bill(stats)
            if why := nothing_played(stats, self.without_attempt):
                raise UserError(why)

    def commit(self, draw: Draw, version: int, attempts: Sequence[TrainedAttempt]) -> None:
        """Commits a trained batch. `attempts`: how it was trained. Raises DrawExpired if the draw
        expired during the step; the learner must then restart from its checkpoint."""
        heartbeat(f"commit and broadcast of version {version}")
        self.client.commit(draw.draw_id, version, version, attempts)
        groups = tuple(group.group_id for group in draw.groups)
        self.last_state = RunState(version, groups, self.last_state.model_digest)

    def report(
        self, draw: Draw, version: int, result: StepResult, published: dict[str, float]
    ) -> None:
        """Reports a step and the evaluations that have ended. `published`: metrics of publishing.

        After step 1, waits for the evaluation of version 0, which must not be played with newer
        weights.
        """
        self.counts["out_of_memory"] += result.out_of_memory
        self.bill.add_step(result.metrics)
        fresh = [group for group in draw.groups if group.group_id not in draw.replayed]
        replaced, algorithm = self._fetch_replaced(draw), self.config.algorithm
        explored = [*fresh, *replaced]
        busy_s = result.metrics["learner/step_s"] + result.metrics.get("learner/queries_s", 0.0)
        metrics = {
            **result.metrics,
            "learner/wait_s": self.waited_s,
            "learner/idle_share": self.waited_s / (self.waited_s + busy_s),
            **self._batch_metrics(explored, draw.version),
            **self.paid_replies.add(explored),
            **selection_metrics(draw, replaced, algorithm),
            **reuse_metrics(draw),
            **published,
            **self._service_metrics(version),
            **{f"learner/{name}": float(n) for name, n in self.counts.items()},
        }
        if unread := unread_reflection(explored):
            why = f"none of the step's reflections can be read; one begins {unread}"
            notice_again("unread reflection", why)
        shown = histograms(explored, draw.version) if self.actors else {}
        self.reporter.step(version, metrics, shown, unread)
        self._report_evaluations(self.evaluator.collect())
        self.is_first_step = False
        if not self.actors:  # no launcher does it
            RunFolder(self.run).settle_settings(version)
            echo(
                f"step {version}/{self.config.learner.steps}  loss {metrics['learner/loss']:.4f}  "
                f"{metrics['learner/tokens_per_s']:.0f} trained tok/s"
            )
        if version == 1:
            self._wait_for_evaluations()
            self.holds_back = bool(self.evaluator.pending)  # if the run was stopped

    def skip_step(self, draw: Draw, version: int, result: StepResult) -> None:
        """Discards a batch whose loss or gradient is not finite. Lists the batch's groups in
        `skipped.jsonl`."""
        self.counts["skipped_steps"] += 1
        self.counts["out_of_memory"] += result.out_of_memory
        self.bill.add_step(result.metrics)
        folder = RunFolder(self.run)
        step = SkippedStep(
            version=version,
            draw=draw.draw_id,
            loss=repr(result.metrics["learner/loss"]),
            grad_norm=repr(result.metrics["learner/grad_norm"]),
            groups=[group.group_id for group in draw.groups],
            tasks=[group.task.task_id for group in draw.groups],
        )
        folder.add_skipped(step)
        self.client.discard(draw.draw_id, "not_finite")
        skipped = float(self.counts["skipped_steps"])
        self.reporter.scalars(version, {"learner/skipped_steps": skipped})
        notice(
            f"step {version + 1} skipped: loss {step.loss}, gradient norm {step.grad_norm}; its "
            f"groups are listed in {folder.skipped_file.name}"
        )

    # ── metrics ─────────────────────────────────────────────────────────────────────────

    def _fetch_replaced(self, draw: Draw) -> list[Group]:
        """Fetches the groups that were replaced since the previous draw. Metrics cover them too."""
        groups, size = list[Group](), self.config.learner.groups_per_step
        for at in range(0, len(draw.row.replaced), size):
            try:
                groups += self.client.get(draw.row.replaced[at : at + size])
            except NotFound as error:  # retention evicted them first
                log.warning("metrics of this step do not cover replaced groups: %s", error)
        return groups

    def _batch_metrics(self, groups: Sequence[Group], version: int) -> dict[str, float]:
        algorithm, several = self.config.algorithm, bool(self.config.env.others)
        with blame(algorithm.metrics):
            metrics = group_metrics(groups, algorithm, several=several)
        if not self.actors:  # these groups have versions of other runs
            return metrics
        metrics |= staleness_metrics(groups, version) | time_metrics(groups)
        alarms = mismatched_fingerprints(groups, self.fingerprints)
        for alarm in alarms:
            log.error("engines disagree about the weights of %s", alarm)
        return metrics | ({"weights/mismatch": float(len(alarms))} if alarms else {})

    def _service_metrics(self, version: int) -> dict[str, float]:
        """Returns the metrics of the buffer and of its actors, recent rates and shares included."""
        stats = self.client.stats()
        actors = actor_metrics(stats.actors, version)
        recent = self.recent_counts.add(time.monotonic(), actors)
        return buffer_metrics(stats) | actors | recent | self._update_bill(stats, write=True)

    def _update_bill(self, stats: BufferStats, *, write: bool = False) -> dict[str, float]:
        """Returns the metrics of the bill. Stops the run once a limit of its budget is used up."""
        metrics = self.bill.update(stats, write=write)
        if not self.stopped and (spent := self.bill.spent):
            notice(f"{spent}; the run ends with a checkpoint")
            self.stopped = True
        return metrics

    def finish_publication(self) -> None:
        """Waits until the last version is published. Raises WeightsError if publishing failed or
        missed its deadline."""
        began = time.monotonic()
        while not self.publisher.published(PUBLISHED_S):
            still_waiting(self.trainer, "waiting until the last weights are published")
        self.published_wait_s = time.monotonic() - began

    def publish(
        self, version: int, weights: Iterator[tuple[str, Tensor]], shapes: list[Shape]
    ) -> dict[str, float]:
        """Copies weights and begins to publish them. Call `finish_publication` first. Returns
        metrics; those about comparing and compressing belong to the previous version. Does nothing
        if the run was stopped during the evaluation of version 0."""
        if self.holds_back:
            return {}
        name, adapters = self.config.actor.dtype, self.trainer.adapters
        dtype = None if name == "auto" or adapters else getattr(torch, name)
        before, wait_s = self.publisher.metrics, self.published_wait_s
        copied = self.publisher.begin(version, weights, dtype, shapes, adapters)
        metrics = before | copied | {"wait_s": wait_s}
        return {f"weights/{name}": value for name, value in metrics.items()}

    # ── evaluations ─────────────────────────────────────────────────────────────────────

    def evaluate(self, version: int) -> None:
        """Starts an evaluation, unless its result is already reported."""
        if version not in self.reporter.evaluated:
            self.evaluator.start(version)

    def _wait_for_evaluations(self) -> None:
        def waiting() -> None:
            still_waiting(self.trainer)
            self.publisher.published()
            self._check_attempts()

        self._report_evaluations(self.evaluator.wait(lambda: self.stopped, waiting))

    def _report_evaluations(self, ended: Iterable[Evaluation]) -> None:
        for evaluation in ended:
            # Reported last: a learner that is killed earlier reads the evaluation again.
            keep_evaluation(self.run, self.config, evaluation)
            keep_if_best(self.run, evaluation)
            self.reporter.evaluation(evaluation.line)

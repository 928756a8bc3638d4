"""Evaluates policies during a run: the run's actors play held-out tasks between training tasks.

The weights with the most success become the best model. All other evaluated weights are removed:

    run/candidates/step-000040 (evaluation under way) ─► run/best (with evaluation.json)
"""

import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from buffer import BufferClient, BufferStats
from learner.evaluation.conversation import Conversation, conversation
from learner.evaluation.evaluation_folder import part_folder, settings_of, write_evaluation
from learner.evaluation.metrics import Report, report, scalars
from r3l.codec import RECORD_LIMIT, encode
from r3l.errors import UserError
from r3l.files.whole_file import replace_folder
from r3l.notices import notice, notice_again
from r3l.records import Task
from r3l.run.config import RunConfig
from r3l.run.evaluation_tags import EvalTag
from r3l.run.files import run_folder
from r3l.run.files.progress_lines import EvalLine
from r3l.run.files.run_folder import BEST, RunFolder

log = logging.getLogger(__name__)

MESSAGE_BYTES = RECORD_LIMIT // 2  # a message holds at most RECORD_LIMIT bytes
POLL_S = 0.2
SAY_S = 5.0
"""Seconds between progress notices while the learner waits for an evaluation."""
FIRST_GROUPS = 16
CANDIDATES = "candidates"
EVALUATIONS = "evaluations"
"""The folder of a run's evaluations (learner.evaluation.evaluation_folder)."""


@dataclass(frozen=True)
class Part:
    """All attempts at one temperature, and a report on them."""

    attempts: Sequence[Conversation]
    report: Report


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of policy `version`: its first part, and `further` parts by temperature."""

    version: int
    attempts: Sequence[Conversation]
    report: Report
    further: Mapping[float, Part] = field(default_factory=dict)

    @cached_property
    def line(self) -> EvalLine:
        """The reports as a line of the progress file."""
        further = {temperature: part.report for temperature, part in self.further.items()}
        return EvalLine(self.version, scalars(self.report, further))


class Evaluator:
    """Starts evaluations and collects the finished ones."""

    def __init__(self, client: BufferClient, config: RunConfig, tasks: list[Task]) -> None:
        self.client, self.config, self.tasks = client, config, tasks
        self.pending: dict[str, int] = {}

    def start(self, version: int) -> None:
        """Requests an evaluation of `version`. Actors with newer weights may play the tasks too."""
        if not self.tasks:
            return
        for temperature in (None, *self.config.eval.further_temperatures):
            tag = str(EvalTag(version, temperature))
            for message in in_messages(self.tasks):
                self.client.add_tasks(message, purpose="eval", tag=tag, min_version=version)
            self.pending[tag] = version

    def take_up(self, reported: Set[int], version: int, run: Path) -> None:
        """Takes over an earlier learner's unreported evaluations of policies 0 to `version`. If
        `version` is above 0, drops an unfinished evaluation of policy 0."""
        progress = self.client.stats().eval_progress if self.tasks else {}
        known = {tag: part for tag in progress if (part := EvalTag.parse(tag))}
        first = {tag: progress[tag] for tag, part in known.items() if part.version == 0}
        done = sum(finished for finished, _ in first.values())
        total = sum(tasks for _, tasks in first.values())
        for tag, part in known.items():
            if part.version not in reported and part.version <= version:
                self.pending[tag] = part.version
        # Actors would play its remaining tasks with newer weights.
        if 0 in self.pending.values() and version > 0 and done < total:
            notice(
                f"evaluation at step 0: dropped at {done}/{total} tasks; the run was stopped "
                f"and continues at step {version}"
            )
            shutil.rmtree(candidate_folder(run, 0), ignore_errors=True)
            self.pending = {tag: of for tag, of in self.pending.items() if of > 0}

    def collect(self) -> list[Evaluation]:
        """Returns the evaluations whose last part has ended since the last call."""
        if not self.pending:
            return []
        progress = self.client.stats().eval_progress
        ended = {
            version: tags
            for version, tags in self._parts().items()
            if all(progress[tag][0] >= progress[tag][1] for tag in tags)
        }
        self.pending = {tag: of for tag, of in self.pending.items() if of not in ended}
        return [self._read(version, tags) for version, tags in ended.items()]

    def _parts(self) -> dict[int, list[str]]:
        """Returns the tags of each pending evaluation, by version."""
        parts: dict[int, list[str]] = {}
        for tag, version in self.pending.items():
            parts.setdefault(version, []).append(tag)
        return parts

    def wait(self, stopped: Callable[[], bool], waiting: Callable[[], None]) -> list[Evaluation]:
        """Waits until no evaluation is pending, or until `stopped()` is true. Returns the
        evaluations that ended. Calls `waiting` at every poll."""
        ended, noticed = list[Evaluation](), time.monotonic()
        while self.pending and not stopped():
            ended += self.collect()
            stats = self.client.stats()
            if time.monotonic() - noticed > SAY_S:
                noticed = time.monotonic()
                for version, tags in self._parts().items():
                    parts = [stats.eval_progress[tag] for tag in tags]
                    done, total = (sum(numbers) for numbers in zip(*parts, strict=True))
                    show_wait(f"evaluation at step {version}: {done}/{total}", stats)
            waiting()
            time.sleep(POLL_S)
        return ended

    def _read(self, version: int, tags: Sequence[str]) -> Evaluation:
        named = [part for tag in tags if (part := EvalTag.parse(tag))]
        parts = {part.temperature: self._part(str(part), version) for part in named}
        first = parts.pop(None)
        further = {at: part for at, part in parts.items() if at is not None}
        return Evaluation(version, first.attempts, first.report, further)

    def _part(self, tag: str, version: int) -> Part:
        groups = self.client.query(purpose="eval", tag=tag, limit=len(self.tasks))
        if gone := len(self.tasks) - len(groups):
            log.error(
                f"evaluation of version {version}: {gone} of {len(self.tasks)} groups were evicted "
                "before they were read and are left out; raise buffer.retention.grace_s above an "
                "evaluation's duration"
            )
        several = bool(self.config.env.others)
        attempts = [
            conversation(group.task, 0, result, several=several)
            for group in groups
            for result in group.results
        ]
        return Part(attempts, report(attempts))


def keep_evaluation(run: Path, config: RunConfig, evaluation: Evaluation) -> None:
    """Writes an evaluation into the run's folder, where `r3l-eval --read` finds it."""
    folder = run / EVALUATIONS / f"step-{evaluation.version:06d}"
    weights = f"step {evaluation.version}"
    first, further = Part(evaluation.attempts, evaluation.report), evaluation.further
    try:
        for temperature in (*further, None):  # the first part is written last
            part = first if temperature is None else further[temperature]
            settings = settings_of(
                config, model=str(run), weights=weights, split="eval", temperature=temperature
            )
            place = part_folder(folder, temperature)
            write_evaluation(place, settings, part.attempts, part.report)
    except OSError as error:
        notice_again(EVALUATIONS, f"{folder} could not be written ({error}); training continues")


def show_wait(waits: str, stats: BufferStats) -> None:
    """Logs what the learner waits for. If an actor has asked for work, also tells the user."""
    if stats.actors:
        notice(waits)
    else:
        log.info("%s; no actor has asked for work", waits)


def nothing_played(stats: BufferStats, before: int) -> str:
    """Explains why all attempts so far failed. Returns "" if not all failed, or if fewer than
    FIRST_GROUPS groups failed. `before`: number of groups that failed in earlier launches."""
    ended = {state for part in (stats.train, stats.eval) for state, n in part.items() if n}
    others = ended & {"complete", "drawn", "trained"} or stats.drops.keys() - {"no_trajectories"}
    groups = stats.drops.get("no_trajectories", 0) - before
    if others or stats.evicted or groups < FIRST_GROUPS:
        return ""
    causes = Counter[str]()
    for name, count in stats.slot_drops.items():
        causes[name.partition("/")[2]] += count
    if stats.puts > causes.total():
        return ""
    causes.pop("no_base", 0)  # retries of failed base attempts
    named = ", ".join(f"{cause} ({count})" for cause, count in causes.most_common(5))
    return (
        f"the first {groups} groups hold no attempt at all, because every attempt failed: {named}; "
        "the actors' logs have each cause's first traceback; fix the environment and start again"
    )


def in_messages(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Splits tasks into batches. A batch fits into one message to the buffer (MESSAGE_BYTES)."""
    message: list[Task] = []
    size = 0
    for task in tasks:
        length = len(encode(task))
        if message and size + length > MESSAGE_BYTES:
            yield message
            message, size = [], 0
        message.append(task)
        size += length
    if message:
        yield message


# ── the best model ──────────────────────────────────────────────────────────────────────


def candidate_folder(run: Path, version: int) -> Path:
    """Returns the folder for the weights under evaluation."""
    return run / CANDIDATES / f"step-{version:06d}"


def keep_if_best(run: Path, evaluation: Evaluation) -> None:
    """If the evaluated weights beat the best model so far, moves them to `best/`. Otherwise
    removes them. A second call completes an interrupted move."""
    try:
        _keep_if_best(run, evaluation)
    except (OSError, UserError) as error:
        notice_again(BEST, f"{run / BEST} could not be replaced ({error})")


def _keep_if_best(run: Path, evaluation: Evaluation) -> None:
    candidate, best = candidate_folder(run, evaluation.version), run / BEST
    if not candidate.is_dir():
        return
    before = RunFolder(run).best_evaluation()
    if before is not None and evaluation.line.success <= before.success:
        shutil.rmtree(candidate)
        return
    run_folder.write_evaluation(candidate, evaluation.line)
    place = best.resolve()  # `best` may be a link to another disk
    coming = place.with_name(".coming-best")
    shutil.rmtree(coming, ignore_errors=True)
    if candidate.stat().st_dev == place.parent.stat().st_dev:
        coming = candidate
    else:
        shutil.copytree(candidate, coming)
    replace_folder(coming, place)
    shutil.rmtree(candidate, ignore_errors=True)

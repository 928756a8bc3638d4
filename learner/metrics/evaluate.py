"""Evaluation during a run: held-out tasks, played by the run's own actors.

The learner adds the tasks to the buffer under a tag; actors whose weights are new enough lease
them before any training task; the learner reads the results when all have ended. Generation for
training continues during that time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from buffer import BufferClient, BufferStats
from learner.metrics.group_metrics import success_by_environment
from learner.metrics.truncation import truncation_metrics
from r3l.algorithms.advantages import SUCCESS
from r3l.codec import RECORD_LIMIT, encode
from r3l.process.notices import notice
from r3l.records import STRAGGLER, Task
from r3l.settings.evaluation import EvalConfig

log = logging.getLogger(__name__)

PART_BYTES = RECORD_LIMIT // 2  # a message holds at most RECORD_LIMIT bytes
POLL_S = 0.2
SAY_S = 5.0
"""A learner that waits says to its user how far the evaluation is, every so often."""
QUIET_S = 60.0
"""A learner that waits logs how long there was no progress, every so often."""


@dataclass(frozen=True)
class Evaluation:
    """Result of one evaluation: means over `tasks` attempts; one without a trajectory `failed`.

    `more`: further metrics, by the end of their tag.
    """

    version: int
    success: float
    reward: float
    steps: float
    tasks: int
    failed: int
    more: Mapping[str, float] = field(default_factory=dict)


class Evaluator:
    """Starts evaluations and collects those that have ended."""

    def __init__(self, client: BufferClient, config: EvalConfig, tasks: list[Task]) -> None:
        self.client, self.config, self.tasks = client, config, tasks
        self.pending: dict[str, int] = {}

    def start(self, version: int) -> None:
        """Request an evaluation of policy `version`, or of a newer one if actors have moved on."""
        if self.tasks:
            tag = f"eval@{version}"
            for part in parts(self.tasks):
                self.client.add_tasks(part, purpose="eval", tag=tag, min_version=version)
            self.pending[tag] = version

    def take_up(self, reported: Set[int], version: int) -> None:
        """Wait again for evaluations of versions up to `version` that an earlier learner requested
        and did not report."""
        for tag in self.client.stats().eval_progress if self.tasks else ():
            name, _, number = tag.partition("@")
            unreported = name == "eval" and number.isdigit() and int(number) not in reported
            if unreported and int(number) <= version:
                self.pending[tag] = int(number)

    def collect(self) -> list[Evaluation]:
        """Evaluations that ended since the last call."""
        if not self.pending:
            return []
        progress = self.client.stats().eval_progress
        ended = [tag for tag in self.pending if progress[tag][0] >= progress[tag][1]]
        return [self._read(tag, self.pending.pop(tag)) for tag in ended]

    def wait(self, stopped: Callable[[], bool], waiting: Callable[[], None]) -> list[Evaluation]:
        """Block until nothing is pending or `stopped()`. Waits for actors to play the tasks; calls
        `waiting` at every poll, says every SAY_S how far they are, and logs if there was no
        progress for QUIET_S."""
        ended, before = list[Evaluation](), -1
        moved = said = time.monotonic()
        while self.pending and not stopped():
            ended += self.collect()
            stats = self.client.stats()
            progress = stats.eval_progress
            done = sum(done for done, _ in progress.values())
            if stats.actors and time.monotonic() - said > SAY_S:  # before, engines start
                said = time.monotonic()
                for tag, version in self.pending.items():
                    notice("evaluation at step {}: {}/{}".format(version, *progress[tag]))
            if done != before:
                before, moved = done, time.monotonic()
            elif time.monotonic() - moved > QUIET_S:
                moved = time.monotonic()
                log.warning("evaluation: %d attempts done, none for %g s", done, QUIET_S)
            waiting()
            time.sleep(POLL_S)
        return ended

    def _read(self, tag: str, version: int) -> Evaluation:
        groups = self.client.query(purpose="eval", tag=tag, limit=len(self.tasks))
        if gone := len(self.tasks) - len(groups):
            log.error(
                "evaluation of version %d: %d of %d groups were evicted before they were read and "
                "are left out; raise buffer.retention.grace_s above the time it takes",
                version,
                gone,
                len(self.tasks),
            )
        played = [t for g in groups for t in g.trajectories]
        causes = Counter(r.cause for g in groups for r in g.results if r.status == "failed")
        count, by_env = max(len(groups), 1), success_by_environment(groups)
        return Evaluation(
            version=version,
            success=sum(t.reward >= SUCCESS for t in played) / count,
            reward=sum(t.reward for t in played) / count,
            steps=sum(t.num_steps for t in played) / max(len(played), 1),
            tasks=len(groups),
            failed=len(groups) - len(played),
            more={f"failed_{cause}": float(n) for cause, n in causes.items()}
            | truncation_metrics(groups)
            | (
                {f"success_{env}": share for env, share in by_env.items()}
                if len(by_env) > 1
                else {}
            ),
        )


FIRST_GROUPS = 16


def nothing_played(stats: BufferStats, before: int) -> str:
    """Why the first FIRST_GROUPS groups of a run hold no attempt, with the number of failures by
    cause; "" if there are fewer groups, or if any attempt was played to its end. `before`: groups
    without an attempt that an earlier launch of the run has left."""
    ended = {state for part in (stats.train, stats.eval) for state, n in part.items() if n}
    others = ended & {"complete", "drawn", "trained"} or stats.drops.keys() - {"no_trajectories"}
    groups = stats.drops.get("no_trajectories", 0) - before
    if others or stats.evicted or groups < FIRST_GROUPS:
        return ""
    causes = Counter[str]()
    for name, count in stats.slot_drops.items():
        causes[name.partition("/")[2]] += count
    if stats.puts > sum(n for cause, n in causes.items() if cause != STRAGGLER):
        return ""
    causes.pop("no_base", 0)  # retries of those that failed
    named = ", ".join(f"{cause} ({count})" for cause, count in causes.most_common(5))
    return (
        f"the first {groups} groups hold no attempt at all, every one "
        f"failed: {named}; the first failure of each cause is in the actors' logs, with its "
        "traceback: mend the environment and start again"
    )


def parts(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """The tasks in parts of at most PART_BYTES, each one message to the buffer."""
    part: list[Task] = []
    size = 0
    for task in tasks:
        length = len(encode(task))
        if part and size + length > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(task)
        size += length
    if part:
        yield part

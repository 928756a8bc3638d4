"""The metrics of an evaluation. A new one is a line of METRICS.

conversations ─► by task ─► one value per task ─► mean over tasks, with an interval
                                                     │
               report: for all tasks, and for each family of tasks ─► scalars
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from envs.evaluation.conversation import Conversation
from envs.evaluation.intervals import Interval, bootstrap, pass_at_k, wilson
from envs.evaluation.truncation import truncation_of
from r3l.records import Record

INTERVAL = (
    "95 %; success and pass@k: Wilson over tasks; the others: percentile bootstrap over tasks"
)
Attempts = Sequence[Conversation]


class EvalMetric(NamedTuple):
    """A mean over tasks. `of_task`: its value for the attempts at one task, None if they have
    none; `interval`: the 95 % interval of the mean of such values."""

    name: str
    unit: str
    meaning: str
    of_task: Callable[[Attempts], float | None]
    interval: Callable[[Sequence[float]], Interval]


class Estimate(Record):
    """A mean over tasks with its 95 % interval; all None if no task has a value."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None


class Metrics(Record):
    """The metrics of some tasks.

    `failed`: attempts that failed, by cause; they earn nothing. `faults`: errors of the
    environment that ended no attempt. `estimates`: by the name of the metric. `lengths`: tokens,
    and shares cut off (envs.evaluation.truncation).
    """

    tasks: int
    attempts: int
    failed: dict[str, int]
    faults: dict[str, int]
    estimates: dict[str, Estimate]
    lengths: dict[str, float]


class Report(Record):
    """The metrics of all tasks and of each family. `interval`: what the intervals are."""

    interval: str
    all: Metrics
    families: dict[str, Metrics]


def _pass_at(k: int, attempts: Attempts) -> float:
    return pass_at_k(len(attempts), sum(one.success for one in attempts), k)


def _reward(attempts: Attempts) -> float:
    return sum(one.reward for one in attempts) / len(attempts)


def _played(value: Callable[[Conversation], float], attempts: Attempts) -> float | None:
    """The mean over the attempts that did not fail."""
    values = [value(one) for one in attempts if not one.cause]
    return sum(values) / len(values) if values else None


def _wilson(values: Sequence[float]) -> Interval:
    return wilson(sum(values) / len(values), len(values))


SUCCESS_RATE = EvalMetric(
    "success", "share", "attempts with full reward, mean over tasks", partial(_pass_at, 1), _wilson
)
REWARD = EvalMetric("reward", "reward", "mean over tasks", _reward, bootstrap)
METRICS = (
    SUCCESS_RATE,
    REWARD,
    EvalMetric(
        *("steps", "steps", "mean length of an attempt"),
        partial(_played, lambda one: len(one.turns)),
        bootstrap,
    ),
    EvalMetric(
        *("tokens", "tokens", "sampled in an attempt, mean"),
        partial(_played, lambda one: one.tokens),
        bootstrap,
    ),
)


def report(attempts: Attempts, ks: Sequence[int] = ()) -> Report:
    """The report of an evaluation, with pass@k for each of `ks`."""
    families = sorted({one.family for one in attempts if one.family})
    of_family = {
        name: _metrics([one for one in attempts if one.family == name], ks) for name in families
    }
    return Report(INTERVAL, _metrics(attempts, ks), of_family)


def by_task(attempts: Attempts) -> dict[str, list[Conversation]]:
    """The attempts at each task, in the order in which the tasks first occur."""
    tasks: dict[str, list[Conversation]] = {}
    for one in attempts:
        tasks.setdefault(one.task_id, []).append(one)
    return tasks


def scalars(report: Report) -> dict[str, float]:
    """The numbers of a report by the end of their tag, as learner.metrics.tags lists them."""
    every = report.all
    found = {"tasks": float(every.tasks), "failed": float(sum(every.failed.values()))}
    for name, estimate in every.estimates.items():
        tag = name.replace("@", "_at_")
        found[tag] = estimate.mean or 0.0
        if estimate.low is not None and estimate.high is not None:
            found |= {f"{tag}_low": estimate.low, f"{tag}_high": estimate.high}
    found |= {f"failed_{cause}": float(count) for cause, count in every.failed.items()}
    found |= {f"fault_{name}": float(count) for name, count in every.faults.items()}
    for family, metrics in report.families.items():
        kind = re.sub(r"[^\w.:/-]+", "_", family)  # what every logger takes
        found[f"success_of_{kind}"] = metrics.estimates["success"].mean or 0.0
    return found | every.lengths


def _metrics(attempts: Attempts, ks: Sequence[int]) -> Metrics:
    tasks = by_task(attempts).values()
    more = [
        EvalMetric(f"pass@{k}", "share", "", partial(_pass_at, k), _wilson)
        for k in sorted({*ks} - {1})
    ]
    return Metrics(
        tasks=len(tasks),
        attempts=len(attempts),
        failed=dict(Counter(one.cause for one in attempts if one.cause)),
        faults=dict(Counter(fault for one in attempts for fault in one.faults)),
        estimates={
            metric.name: _estimate(metric, [metric.of_task(each) for each in tasks])
            for metric in (SUCCESS_RATE, *more, *METRICS[1:])
        },
        lengths=truncation_of(attempts),
    )


def _estimate(metric: EvalMetric, found: Sequence[float | None]) -> Estimate:
    values = [value for value in found if value is not None]
    if not values:
        return Estimate()
    return Estimate(sum(values) / len(values), *metric.interval(values))

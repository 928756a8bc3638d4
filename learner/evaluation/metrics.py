"""Computes the metrics of an evaluation. To add a metric, add a line to METRICS.

attempts ─► grouped by task ─► one value per task ─► mean over tasks, with a 95 % interval

`report` does this for all tasks and for each family of tasks. `scalars` flattens a report.
`compare` compares two evaluations of the same tasks.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from learner.evaluation.conversation import Conversation
from learner.evaluation.lengths import lengths_of
from r3l.records import Record
from r3l.run.answer_probability import EXACT
from r3l.run.evaluation_tags import number_text

INTERVAL = (
    "95 %; success and pass@k: Wilson over tasks; the others: percentile bootstrap over tasks"
)
Z_95 = 1.959963984540054
"""95 % of a normal distribution is within this many standard deviations of its mean."""
RESAMPLES = 2000
Attempts = Sequence[Conversation]
Interval = tuple[float, float]


class EvalMetric(NamedTuple):
    """A mean over tasks. `of_task` computes a task's value, or None. `interval` computes the mean's
    95 % interval from all tasks' values."""

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

    `failed`: number of failed attempts by cause. A failed attempt has reward 0. `faults`: number of
    faults by name. `estimates`: the mean of each metric, by its name. `lengths`: see
    learner.evaluation.lengths.
    """

    tasks: int
    attempts: int
    failed: dict[str, int]
    faults: dict[str, int]
    estimates: dict[str, Estimate]
    lengths: dict[str, float]


class Report(Record):
    """The metrics of all tasks and of each family."""

    all: Metrics
    families: dict[str, Metrics]


class Comparison(Record):
    """Compares a first evaluation with a second in one metric. `better`, `worse`, `same`: numbers
    of tasks. `difference`: first minus second, mean over tasks."""

    better: int
    worse: int
    same: int
    difference: Estimate


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Estimates, without bias, the probability that at least one of k attempts succeeds (Chen et
    al. 2021, §2.1). `attempts` must be at least k."""
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def wilson(values: Sequence[float]) -> Interval:
    """Computes Wilson's 95 % score interval for the mean of independent values in [0, 1].

    If each value is either 0 or 1, the interval covers the true mean with about 95 % probability.
    Values between 0 and 1 vary less, so that the interval may be too wide.
    """
    count, mean = len(values), sum(values) / len(values)
    spread = Z_95 * math.sqrt(mean * (1 - mean) / count + Z_95**2 / (4 * count**2))
    middle, scale = mean + Z_95**2 / (2 * count), 1 + Z_95**2 / count
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return (low if mean > 0 else 0.0), (high if mean < 1 else 1.0)  # exact instead of nearly 0 or 1


def bootstrap(values: Sequence[float]) -> Interval:
    """Computes a 95 % interval for the mean of independent values (percentile bootstrap). The same
    values give the same interval in any order, since actors finish an evaluation's tasks in any
    order."""
    data = np.sort(np.asarray(values, dtype=np.float64))
    drawn = np.random.default_rng(0).integers(0, len(data), (RESAMPLES, len(data)))
    low, high = np.quantile(data[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _pass_at(k: int, attempts: Attempts) -> float:
    return pass_at_k(len(attempts), sum(attempt.success for attempt in attempts), k)


def _reward(attempts: Attempts) -> float:
    return sum(attempt.earned for attempt in attempts) / len(attempts)


def _exact(attempts: Attempts) -> float | None:
    """Returns the exact probability of a task's right answers; None if it was not measured."""
    measured = [attempt.scores[EXACT] for attempt in attempts if EXACT in attempt.scores]
    return measured[0] if measured else None


def _played(value: Callable[[Conversation], float], attempts: Attempts) -> float | None:
    """Averages `value` over the attempts that did not fail; None if all failed."""
    values = [value(attempt) for attempt in attempts if not attempt.cause]
    return sum(values) / len(values) if values else None


SUCCESS_RATE = EvalMetric(
    "success", "share", "attempts with full reward, mean over tasks", partial(_pass_at, 1), wilson
)
REWARD = EvalMetric("reward", "reward", "mean over tasks", _reward, bootstrap)
METRICS = (
    SUCCESS_RATE,
    REWARD,
    EvalMetric(
        *("steps", "steps", "mean length of an attempt"),
        partial(_played, lambda attempt: len(attempt.steps)),
        bootstrap,
    ),
    EvalMetric(
        *("tokens", "tokens", "sampled in an attempt, mean"),
        partial(_played, lambda attempt: attempt.tokens),
        bootstrap,
    ),
)
ANSWER_PROBABILITY = EvalMetric(
    *(EXACT, "share", "probability of the listed right answers at temperature 1, mean over tasks"),
    _exact,
    bootstrap,
)
"""Reported only if it was measured."""
COMPARED = (SUCCESS_RATE, REWARD, ANSWER_PROBABILITY)
"""The metrics that `compare` uses. A larger value is better."""


def report(attempts: Attempts, ks: Sequence[int] = ()) -> Report:
    """Returns the report of an evaluation, with pass@k for each of `ks`."""
    names = sorted({attempt.family for attempt in attempts} - {""})
    of_family = {name: _metrics([a for a in attempts if a.family == name], ks) for name in names}
    return Report(_metrics(attempts, ks), of_family)


def compare(attempts: Attempts, others: Attempts) -> dict[str, Comparison]:
    """Compares two evaluations of the same tasks in each metric of COMPARED that both have.
    Differences are `attempts` minus `others`, over the tasks for which both have a value."""
    here, there = by_task(attempts), by_task(others)
    comparisons = {}
    for metric in COMPARED:
        pairs = [(metric.of_task(each), metric.of_task(there[task])) for task, each in here.items()]
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        if not differences:
            continue
        comparisons[metric.name] = Comparison(
            better=sum(value > 0 for value in differences),
            worse=sum(value < 0 for value in differences),
            same=sum(value == 0 for value in differences),
            difference=_estimate(differences, bootstrap),
        )
    return comparisons


def by_task(attempts: Attempts) -> dict[str, list[Conversation]]:
    """Groups the attempts by task, in the order in which the tasks first occur."""
    tasks: dict[str, list[Conversation]] = {}
    for attempt in attempts:
        tasks.setdefault(attempt.task_id, []).append(attempt)
    return tasks


def scalars(report: Report, further: Mapping[float, Report] = {}) -> dict[str, float]:
    """Returns a report's numbers. The keys are the tags without `eval/` (learner.metrics.tags).
    `further`: reports on the same tasks, by temperature."""
    numbers = _numbers(report)
    for temperature, other in further.items():
        part = f"temperature_{number_text(temperature)}"
        numbers |= {f"{part}/{name}": value for name, value in _numbers(other).items()}
    return numbers


def _numbers(report: Report) -> dict[str, float]:
    every = report.all
    numbers = {"tasks": float(every.tasks), "failed": float(sum(every.failed.values()))}
    for name, estimate in every.estimates.items():
        tag = name.replace("@", "_at_")
        numbers[tag] = estimate.mean or 0.0
        if estimate.low is not None and estimate.high is not None:
            numbers |= {f"{tag}_low": estimate.low, f"{tag}_high": estimate.high}
    numbers |= {f"failed_{cause}": float(count) for cause, count in every.failed.items()}
    numbers |= {f"fault_{name}": float(count) for name, count in every.faults.items()}
    for family, metrics in report.families.items():
        kind = re.sub(r"[^\w.:/-]+", "_", family)  # what every logger takes
        numbers[f"success_of_{kind}"] = metrics.estimates["success"].mean or 0.0
    return numbers | every.lengths


def _metrics(attempts: Attempts, ks: Sequence[int]) -> Metrics:
    tasks = by_task(attempts).values()
    more = [
        EvalMetric(f"pass@{k}", "share", "", partial(_pass_at, k), wilson)
        for k in sorted({*ks} - {1})
    ]
    if any(EXACT in attempt.scores for attempt in attempts):
        more.append(ANSWER_PROBABILITY)
    return Metrics(
        tasks=len(tasks),
        attempts=len(attempts),
        failed=dict(Counter(attempt.cause for attempt in attempts if attempt.cause)),
        faults=dict(Counter(fault for attempt in attempts for fault in attempt.faults)),
        estimates={
            metric.name: _estimate([metric.of_task(each) for each in tasks], metric.interval)
            for metric in (SUCCESS_RATE, *more, *METRICS[1:])
        },
        lengths=lengths_of(attempts),
    )


def _estimate(
    of_tasks: Sequence[float | None], interval: Callable[[Sequence[float]], Interval]
) -> Estimate:
    values = [value for value in of_tasks if value is not None]
    if not values:
        return Estimate()
    return Estimate(math.fsum(values) / len(values), *interval(values))

"""Accumulates what a run's lines say about its learning.

    steps ───────► counts of attempts, the newest steps, mean rewards of blocks of attempts
    evaluations ─► the first, the best and the newest one

Its memory does not grow with the run. Steps that an earlier version of r3l wrote do not say how
many attempts they had; they count as 0 attempts.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from itertools import islice
from statistics import fmean, linear_regression, median
from typing import NamedTuple

from launch.inspection.reward_course import Course
from r3l.run.files.progress_lines import EvalLine, StepLine

LOOKED_AT = 5
"""How many steps are enough to judge, however small they are."""
ENOUGH = 64
"""How many attempts are enough to judge."""
NEWEST = 256
"""Shares are taken over this many of the newest attempts or more, and over LOOKED_AT steps or
more."""
BLOCKS, FEWEST_BLOCKS = 20, 4
"""A trend is judged by the last BLOCKS mean rewards, once there are FEWEST_BLOCKS. Each mean is
over ENOUGH attempts or more."""
CLEAR = 2.0
"""How many standard errors make a difference clear."""


class Change(NamedTuple):
    """A metric of two evaluations, and the 95 % interval of its difference."""

    before: float
    after: float
    low: float
    high: float


class Window:
    """Some steps in their order. `mean` weighs each by its attempts."""

    def __init__(self, steps: Iterable[StepLine]) -> None:
        self.metrics = [step.metrics for step in steps]
        self.attempts = sum(map(attempts_of, self.metrics))
        self.enough = len(self.metrics) >= LOOKED_AT or self.attempts >= ENOUGH

    def values(self, tag: str) -> list[float]:
        """Returns a metric's values in the steps that have the metric."""
        return [metrics[tag] for metrics in self.metrics if tag in metrics]

    def all(self, tag: str, holds: Callable[[float], bool]) -> bool:
        """Whether there are enough steps, some step has the metric, and all its values satisfy
        `holds`."""
        values = self.values(tag)
        return self.enough and bool(values) and all(map(holds, values))

    def mean(self, tag: str) -> float:
        """Returns the mean of a metric over the attempts of the steps that have it; 0 if none."""
        known = [metrics for metrics in self.metrics if tag in metrics]
        weights = [max(attempts_of(metrics), 1.0) for metrics in known]
        return fmean((metrics[tag] for metrics in known), weights) if known else 0.0

    def median(self, tag: str) -> float:
        """Returns the median of a metric over the steps that have it. If there are not enough steps
        or fewer than three have it, returns NaN, which is neither below nor above any limit."""
        values = self.values(tag)
        return median(values) if self.enough and len(values) > 2 else math.nan

    def most_frequent(self, family: str) -> str:
        """Finds the largest metric whose name begins with `family`. Returns the rest of that
        name."""
        tags = {tag for metrics in self.metrics for tag in metrics if tag.startswith(family)}
        return max(tags, key=self.mean, default=family).removeprefix(family)


class Evidence:
    """What a run's lines so far show.

    `attempts`, `successes`: in training, retries included. `since_success`: attempts since the last
    step or evaluation with a success. `since_contrast`: attempts since the last step with a group
    of unequal rewards. `since_improvement`: retries since the last step in which a retry was
    better. `first`: the first steps, just enough to judge. `evaluations`: the first, the best and
    the newest; () without any.
    """

    def __init__(self, steps: Iterable[StepLine] = (), evals: Iterable[EvalLine] = ()) -> None:
        self.attempts = self.successes = 0.0
        self.since_success = self.since_contrast = self.since_improvement = 0.0
        self.first = Window([])
        self.steps = deque[StepLine](maxlen=NEWEST)
        self.evaluations: tuple[EvalLine, ...] = ()
        self.evaluated = 0  # how many evaluations
        self.rewards = deque[float](maxlen=BLOCKS)
        self.course = Course()  # of the mean rewards of all blocks
        self._block = self._rewards = self._weights = 0.0  # attempts, and sums of a mean
        self.add(steps, evals)

    def add(self, steps: Iterable[StepLine], evals: Iterable[EvalLine]) -> None:
        """Takes in further steps, in their order, and further evaluations, in theirs."""
        waiting = deque(evals)
        for step in steps:
            while waiting and waiting[0].step < step.step:
                self.add_evaluation(waiting.popleft())
            self.add_step(step)
        for evaluation in waiting:
            self.add_evaluation(evaluation)

    def copy(self) -> "Evidence":
        """Returns an independent copy: lines added to one do not change the other."""
        other = copy(self)
        other.steps, other.rewards = self.steps.copy(), self.rewards.copy()
        return other

    def only_evaluations(self) -> "Evidence":
        """Returns evidence with the same evaluations but no steps."""
        other = Evidence()
        other.evaluations, other.evaluated = self.evaluations, self.evaluated
        return other

    def add_step(self, step: StepLine) -> None:
        """Takes in the next step."""
        metrics, attempts = step.metrics, attempts_of(step.metrics)
        self.attempts += attempts
        self.successes += (won := metrics.get("group/successes", 0.0))
        self.since_success = 0.0 if won else self.since_success + attempts
        if metrics.get("group/no_contrast", 1.0) < 1.0:
            self.since_contrast = -attempts
        self.since_contrast += attempts
        retries = metrics.get("group/retries", 0.0)
        if metrics.get("group/improvement_rate", 0.0) > 0.0:
            self.since_improvement = -retries
        self.since_improvement += retries
        self.steps.append(step)
        if not self.first.enough:
            self.first = Window(self.steps)
        while len(self.steps) > LOOKED_AT and self._more_than_newest():
            self.steps.popleft()
        self._add_to_block(metrics)

    def add_evaluation(self, line: EvalLine) -> None:
        """Takes in the next evaluation, after the steps that made its version."""
        if line.success > 0:
            self.since_success = 0.0
        first, best, _ = self.evaluations or (line, line, line)
        self.evaluations = (first, max(best, line, key=_score), line)
        self.evaluated += 1

    @property
    def recent(self) -> Window:
        """The newest steps: at least LOOKED_AT of them, and more if these have fewer than NEWEST
        attempts."""
        return Window(self.steps)

    @property
    def last(self) -> Window:
        """The newest LOOKED_AT steps."""
        return Window(list(self.steps)[-LOOKED_AT:])

    @property
    def halves(self) -> tuple[Window, Window]:
        """The older and the newer half of `recent`."""
        steps = list(self.steps)
        return Window(steps[: len(steps) // 2]), Window(steps[len(steps) // 2 :])

    @property
    def trend_known(self) -> bool:
        """Whether there are enough mean rewards to tell a trend."""
        return len(self.rewards) >= FEWEST_BLOCKS

    @property
    def rises(self) -> bool:
        """Whether the last BLOCKS mean rewards clearly rise: the slope of their least-squares line
        is more than CLEAR times its standard error."""
        if not self.trend_known:
            return False
        at, rewards = range(count := len(self.rewards)), [*self.rewards]
        slope, start = linear_regression(at, rewards)
        rest = math.fsum((y - start - slope * x) ** 2 for x, y in zip(at, rewards, strict=True))
        squares = count * (count**2 - 1) / 12  # of the places around their mean
        return slope > CLEAR * math.sqrt(rest / (count - 2) / squares)

    def share(self, tag: str) -> tuple[float, int] | None:
        """Returns the mean of `group/tag` over the newest attempts, and the number of these
        attempts. While there are too few, returns the share in the newest evaluation and the number
        of its tasks. Returns None if neither has the metric."""
        recent = self.recent
        if recent.enough and recent.values(f"group/{tag}"):
            return recent.mean(f"group/{tag}"), max(round(recent.attempts), LOOKED_AT)
        for line in self.evaluations[-1:]:
            if not recent.enough and tag in line.metrics and line.tasks:
                return line.metrics[tag], line.tasks
        return None

    def _add_to_block(self, metrics: Mapping[str, float]) -> None:
        self._block += (attempts := attempts_of(metrics))
        if (reward := metrics.get("group/reward_mean")) is not None:
            weight = max(attempts, 1.0)
            self._rewards, self._weights = self._rewards + weight * reward, self._weights + weight
        if self._block >= ENOUGH:
            self.rewards.append(self._rewards / self._weights if self._weights else 0.0)
            self.course = self.course.after(self.rewards[-1])
            self._block = self._rewards = self._weights = 0.0

    def _more_than_newest(self) -> bool:
        rest = sum(attempts_of(step.metrics) for step in islice(self.steps, 1, None))
        return rest >= NEWEST or rest == 0.0


def attempts_of(metrics: Mapping[str, float]) -> float:
    """Returns the attempts of a step, retries included; 0 if they were not counted."""
    return metrics.get("group/attempts", 0.0)


def change(before: EvalLine, after: EvalLine, tag: str, widen: float = 1.0) -> Change | None:
    """Compares two evaluations in a metric. Computes the interval of the difference from the
    evaluations' own intervals (Zou and Donner 2008, MOVER), each widened by the factor `widen`.
    Since both evaluations have the same tasks, this interval is rather too wide than too narrow.
    Returns None if an evaluation lacks the metric's interval."""
    names = (tag, f"{tag}_low", f"{tag}_high")
    if not all(name in line.metrics for line in (before, after) for name in names):
        return None
    (one, low_1, high_1), (two, low_2, high_2) = (
        [line.metrics[name] for name in names] for line in (before, after)
    )
    low = two - one - widen * math.hypot(two - low_2, high_1 - one)
    high = two - one + widen * math.hypot(high_2 - two, one - low_1)
    return Change(one, two, low, high)


def _score(line: EvalLine) -> tuple[float, float]:
    return line.success, line.metrics["reward"]

"""Suspects that a run's reward is hacked, from its steps and evaluations. Changes nothing.

    part       one part of the reward rises, and so does the reward, while another part falls;
               only if the parts add up to the reward, and the falling part is no penalty
    success    the reward rises while the share of successes falls, in training or held out
    length     the longer response of a group earns more, and responses become longer; or nearly
               all reward is length, and it rises, but not the held-out success
    one_reply  one short reply earns something in nearly all of the last problems

A run that improves honestly raises no suspicion: every trend must stand out clearly from its noise.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

import numpy as np

from r3l.run.files.progress_lines import EvalLine, History, StepLine

LOOKED_AT = 1000
"""How many of the last steps are examined."""
EVALUATIONS = 256
LEAST = 10
"""Fewest steps of a window. Trends compare the first third of the steps with the last third."""
CLEAR = 3.0  # standard errors by which two windows differ if they differ at all
LEAST_REWARD, LEAST_SUCCESS = 0.02, 0.02  # smaller changes are not reported
TRADE = 0.25  # share of what one part gains that another one loses
APART = 0.25  # share of the reward by which the sum of its parts may differ from it
STEPS_OF_LENGTH, FEW_OF_LENGTH = 20, 8  # that have a rank correlation: at most, at least
STRONG, NEARLY_ALL_OF_IT = 0.4, 0.8  # rank correlation of reward and length
SAME_SIGN = 0.9  # share of those steps with a positive correlation
LONGER = 1.2  # times the earlier length
STEPS_OF_REPLY, EVERYWHERE = 5, 0.8
PART, REWARD, SUCCESS = "group/part_", "group/reward_mean", "group/success_base"
LENGTH, LENGTHS, REPLY = "group/length_correlation", "group/response_mean", "group/one_reply"
READ_THE_BEST = "read the best-paid attempts: do they do what the task asks?"
READ = (PART, REWARD, "group/success_", LENGTH, LENGTHS, REPLY)


class Suspicion(NamedTuple):
    """`kind`: the rule that found it. `what`: the figures. `remedy`: what to do. `of`: for a part,
    the name of the part that falls; for success, where it falls ("training" or "held-out")."""

    kind: str
    what: str
    remedy: str
    of: str = ""


class Trend(NamedTuple):
    """Means of a metric in the first third and the last third of the steps that have it, and the
    standard error of their difference."""

    early: float
    late: float
    error: float

    @property
    def change(self) -> float:
        return self.late - self.early

    def rises(self, least: float = 0.0) -> bool:
        """Whether the metric rises, by more than `least` and by CLEAR standard errors."""
        return self.change > max(least, CLEAR * self.error)

    def falls(self, least: float = 0.0) -> bool:
        """The opposite of `rises`."""
        return -self.change > max(least, CLEAR * self.error)

    def __str__(self) -> str:
        return f"{self.early:.3g} -> {self.late:.3g}"


def suspicions(history: History) -> list[Suspicion]:
    """Returns the reasons to suspect that a run's reward is hacked: at most one for each rule and
    each part of the reward. Examines only the last LOOKED_AT steps."""
    steps, evaluations = history.steps[-LOOKED_AT:], history.evaluations
    return [
        *_parts(steps),
        *_training_success(steps),
        *_held_out_success(steps, evaluations),
        *_length(steps, evaluations),
        *_one_reply(steps),
    ]


class RewardWatch:
    """Reports each suspicion once. `history`: what earlier launches of the run have written. Keeps
    the last LOOKED_AT steps and at most EVALUATIONS evaluations. Of the older evaluations, it keeps
    only the first and the best, since the rules read no others."""

    def __init__(self, history: History) -> None:
        self._steps = deque(map(_of_reward, history.steps[-LOOKED_AT:]), maxlen=LOOKED_AT)
        self._evaluations = list[EvalLine]()  # in the order of their versions
        self._reported: set[tuple[str, str]] = set()
        for line in history.evaluations:
            self._add_evaluation(line)

    def go_back(self, step: int) -> None:
        """Drops the steps after the one from which a learner continues. Keeps the evaluations,
        since those that were reported are not played again."""
        while self._steps and self._steps[-1].step > step:
            self._steps.pop()

    def lines(self, line: StepLine | EvalLine) -> list[str]:
        """Returns what to show after a step or an evaluation."""
        if isinstance(line, EvalLine):
            self._add_evaluation(line)
        else:
            self._steps.append(_of_reward(line))
        found = suspicions(History([*self._steps], self._evaluations))
        new = [one for one in found if (one.kind, one.of) not in self._reported]
        self._reported |= {(one.kind, one.of) for one in new}
        return [
            f"the reward may be hacked: {one.what}; r3l-launch doctor shows examples" for one in new
        ]

    def _add_evaluation(self, line: EvalLine) -> None:
        """Takes in an evaluation, in place of an earlier one of the same version."""
        known, version = self._evaluations, attrgetter("step")
        at = bisect_left(known, line.step, key=version)
        known[at : bisect_right(known, line.step, key=version)] = [line]
        if len(known) > EVALUATIONS:
            older = known[: EVALUATIONS // 2]
            best = max(older, key=attrgetter("success"))
            known[: len(older)] = older[:1] if best is older[0] else [older[0], best]


def _of_reward(step: StepLine) -> StepLine:
    """Returns a step with only the metrics that the rules read."""
    kept = {tag: value for tag, value in step.metrics.items() if tag.startswith(READ)}
    return StepLine(step.step, kept, step.time)


def windows(values: Sequence[float]) -> Trend | None:
    """Compares the first third of some values with the last third. Returns None if a third has
    fewer than LEAST values."""
    third = len(values) // 3
    return between(values[:third], values[-third:]) if third >= LEAST else None


def between(early: Sequence[float], late: Sequence[float]) -> Trend:
    """Compares the means of two windows, with Welch's standard error. Each has two or more
    values."""
    variances = [float(np.var(window, ddof=1)) / len(window) for window in (early, late)]
    return Trend(float(np.mean(early)), float(np.mean(late)), math.sqrt(sum(variances)))


def _trend(steps: Sequence[StepLine], tag: str) -> Trend | None:
    return windows([step.metrics[tag] for step in steps if tag in step.metrics])


def _holds(trend: Trend | None, rule: Callable[[Trend], bool]) -> bool:
    return trend is not None and rule(trend)


def _parts(steps: Sequence[StepLine]) -> Iterator[Suspicion]:
    reward = _trend(steps, REWARD)
    if reward is None or not reward.rises(LEAST_REWARD):
        return
    names = sorted({tag for step in steps for tag in step.metrics if tag.startswith(PART)})
    trends = {name.removeprefix(PART): _trend(steps, name) for name in names}
    known = {name: trend for name, trend in trends.items() if trend is not None}
    if not _make_up(reward, list(known.values())):
        return
    best = max(known, key=lambda name: known[name].change, default="")
    if not best or not known[best].rises():
        return
    for name, trend in known.items():
        penalty = trend.late <= 0 and trend.early <= 0
        if trend.falls(TRADE * known[best].change) and not penalty:
            yield Suspicion(
                "part",
                f"its part {name} falls ({trend}) while its part {best} rises ({known[best]}) and "
                f"the whole reward too ({reward})",
                f"read attempts with much {best} and little {name}; weigh the parts otherwise if "
                "they are no better",
                name,
            )


def _make_up(reward: Trend, parts: Sequence[Trend]) -> bool:
    """Whether the parts add up to the reward, early and late. Otherwise some of them are figures
    that nobody pays for, such as a count of turns. The reward covers retries and the parts do not,
    so their sum may differ from the reward by a share of it."""
    sums = sum(part.early for part in parts), sum(part.late for part in parts)
    most = APART * max(abs(reward.early), abs(reward.late))
    return abs(sums[0] - reward.early) <= most and abs(sums[1] - reward.late) <= most


def _training_success(steps: Sequence[StepLine]) -> Iterator[Suspicion]:
    reward, success = _trend(steps, REWARD), _trend(steps, SUCCESS)
    retries = _trend(steps, "group/success_retry")
    if (
        _holds(reward, lambda trend: trend.rises(LEAST_REWARD))
        and _holds(success, lambda trend: trend.falls(LEAST_SUCCESS))
        and not _holds(retries, lambda trend: trend.rises())  # the mean reward covers retries
    ):
        what = f"it rises ({reward}) while fewer attempts succeed ({success})"
        yield Suspicion("success", what, READ_THE_BEST, "training")


def _held_out_success(
    steps: Sequence[StepLine], evaluations: Sequence[EvalLine]
) -> Iterator[Suspicion]:
    known = [step for step in steps if REWARD in step.metrics]
    if len(evaluations) < 3 or len(known) < 2 * LEAST:
        return
    *earlier, before_last, last = evaluations  # both must be low, since one may be chance
    peak = max(earlier, key=lambda each: each.success)
    ends = [each.metrics.get("success_high", 1.0) for each in (before_last, last)]
    at = max(sum(step.step <= peak.step for step in known), LEAST)
    then, now = (
        [step.metrics[REWARD] for step in part][-LEAST:] for part in (known[:at], known[at:])
    )
    if len(now) < LEAST or max(ends) >= peak.metrics.get("success_low", 0.0):
        return
    trend = between(then, now)
    if trend.rises(LEAST_REWARD):
        what = (
            f"it rises in training ({trend}) while the held-out success falls "
            f"({peak.success:.2f} at step {peak.step}, {last.success:.2f} at step {last.step})"
        )
        yield Suspicion("success", what, READ_THE_BEST, "held-out")


def _length(steps: Sequence[StepLine], evaluations: Sequence[EvalLine]) -> Iterator[Suspicion]:
    known = [step.metrics[LENGTH] for step in steps if LENGTH in step.metrics]
    reward, lengths = _trend(steps, REWARD), _trend(steps, LENGTHS)
    if len(known) < FEW_OF_LENGTH or reward is None or lengths is None:
        return
    last = known[-STEPS_OF_LENGTH:]
    strength = fmean(last)
    # The limit of tokens makes the longest responses nearly equal: the strongest steps count too.
    some = min(len(known), LEAST)
    means = np.convolve(known, np.full(some, 1 / some), "valid")
    strongest = float(means.max())
    longer, improves = lengths.rises(), _improves(steps, evaluations)
    # If length is the reward, longer attempts succeed in training: held-out success tells more.
    excused = improves and not (longer and len(evaluations) < 2)
    nearly_all = (
        strongest >= NEARLY_ALL_OF_IT
        and reward.rises(LEAST_REWARD)
        and not lengths.falls()
        and not excused
    )
    strong = strength >= STRONG and fmean(value > 0 for value in last) >= SAME_SIGN
    much_longer = longer and lengths.late > LONGER * lengths.early
    if nearly_all or (strong and much_longer and not improves):
        shown = strongest if nearly_all else strength
        yield Suspicion(
            "length",
            f"it grows with the length of a response (rank correlation {shown:.2f} within "
            f"groups), and it rises ({reward}; mean response {lengths} tokens)",
            "read the longest attempts; if length is not what you ask for, let the reward not "
            "grow with it, or limit actor.max_response_tokens",
        )


def _improves(steps: Sequence[StepLine], evaluations: Sequence[EvalLine]) -> bool:
    """Whether the held-out success rises. With fewer than two evaluations, whether the success of
    base attempts rises."""
    if len(evaluations) < 2:
        return _holds(_trend(steps, SUCCESS), lambda trend: trend.rises(LEAST_SUCCESS))
    return evaluations[-1].success > evaluations[0].success + LEAST_SUCCESS


def _one_reply(steps: Sequence[StepLine]) -> Iterator[Suspicion]:
    """Examines steps in a row, wherever they are, since the policy may turn to longer replies
    later."""
    in_a_row, last = 0, None
    for step in steps:
        if REPLY in step.metrics:
            in_a_row = in_a_row + 1 if step.metrics[REPLY] >= EVERYWHERE else 0
            last = step if in_a_row >= STEPS_OF_REPLY else last
    if last is not None:
        yield Suspicion(
            "one_reply",
            f"one short reply earns at least half a full reward in {last.metrics[REPLY]:.0%} of "
            f"different problems (until step {last.step})",
            "unless these problems have the same answer, let the reward compare the reply with "
            "the problem",
        )

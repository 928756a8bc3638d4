"""From the curves of runs to what a success costs, and ratios of costs with their intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOW = 5
DRAWS = 10_000
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447)
"""Quantiles of Student's t at 0.975 by degrees of freedom, from 1; the last for more."""
UNITS = {"steps": "optimizer steps", "tokens": "sampled tokens", "cpu": "CPU seconds"}

Array = npt.NDArray[np.float64]

Record = Mapping[str, Any]
"""A line of a results file."""


@dataclass(frozen=True)
class Cost:
    """What a run spent until it reached a success; at least that much if it did not (`reached`
    False)."""

    amount: float
    reached: bool


@dataclass(frozen=True)
class Ratio:
    """A ratio of costs and its 95 % interval over seeds, None unless both sides have at least two.
    With shared seeds: the geometric mean of the seeds' ratios, and the t-interval of their
    logarithms. Else: the ratio of the mean costs, and its bootstrap interval.

    `kind`: "=" if every run reached the success; "<" if a run of the denominator did not, so that
    the true ratio is lower; ">" likewise if one of the numerator did not; "?" if both.
    `values`: the ratio of each warm policy, or of each seed if there is one policy; none if no seed
    is shared. `policies`: how many warm policies the pairs are of.
    """

    value: float
    interval: tuple[float, float] | None
    kind: str
    values: tuple[float, ...] = ()
    policies: int = 0

    @property
    def rounded(self) -> float:
        """The value to two places. A bound is rounded to the side on which it stays true."""
        hundredths = self.value * 100
        if self.kind == "<":
            return math.ceil(hundredths - 1e-6) / 100
        return math.floor(hundredths + 1e-6) / 100 if self.kind == ">" else self.value

    @property
    def below_one(self) -> bool | None:
        """Whether the whole interval is below 1; None if the runs cannot say."""
        if self.interval is None:
            return None
        low, high = self.interval
        if self.kind in "=<":
            return True if high < 1 else None if self.kind == "<" else False
        return False if self.kind == ">" and low > 1 else None


def spent(run: Record, unit: str) -> list[float]:
    """What a run had spent after each of its steps."""
    curve = run["curve"]
    if unit == "steps":
        return [float(step + 1) for step in range(len(curve["tokens"]))]
    return [float(value) for value in curve[unit]]


def ceiling(halves: float) -> float:
    """The largest cosine that an exact gradient can be expected to have with a measured one whose
    halves have the cosine `halves` with each other (Spearman-Brown, and the root of it); 0 if they
    have nothing in common."""
    return math.sqrt(2 * halves / (1 + halves)) if halves > 0 else 0.0


def smooth(values: Sequence[float | None]) -> list[float]:
    """The mean of each value and the WINDOW - 1 before it, without those that are None."""
    means = []
    for at in range(len(values)):
        recent = [v for v in values[max(0, at + 1 - WINDOW) : at + 1] if v is not None]
        means.append(sum(recent) / len(recent) if recent else 0.0)
    return means


def cost(run: Record, success: float, unit: str) -> Cost:
    """What it took until the first attempts of WINDOW steps succeeded so often."""
    amounts = spent(run, unit)
    if not amounts:
        return Cost(0.0, False)
    for amount, share in zip(amounts, smooth(run["curve"]["success_base"]), strict=True):
        if share >= success:
            return Cost(amount, True)
    return Cost(amounts[-1], False)


def ratio(over: Sequence[Record], under: Sequence[Record], success: float, unit: str) -> Ratio:
    """Cost of the runs `over` divided by that of the runs `under`; both need runs. Only pairs
    are compared, since a seed may be of a machine and a warm policy of its own; all runs are if
    there is no pair."""
    paired = pairs(over, under)
    if paired:
        over, under = [one for one, _ in paired], [other for _, other in paired]
    tops, bottoms = ([cost(run, success, unit) for run in runs] for runs in (over, under))
    first, second = (np.array([one.amount for one in costs]) for costs in (tops, bottoms))
    open_top, open_bottom = (not all(c.reached for c in costs) for costs in (tops, bottoms))
    kind = "?" if open_top and open_bottom else ">" if open_top else "<" if open_bottom else "="
    if paired:
        return of_pairs(paired, first / second, kind)
    interval = _interval(first, second) if min(len(first), len(second)) > 1 else None
    return Ratio(float(first.mean() / second.mean()), interval, kind)


def pairs(over: Sequence[Record], under: Sequence[Record]) -> list[tuple[Record, Record]]:
    """The runs of both sides that have the same seed, kind of machine and warm policy."""
    others = {_twins(run): run for run in under}
    mine = sorted((run for run in over if _twins(run) in others), key=lambda run: run["seed"])
    return [(run, others[_twins(run)]) for run in mine]


def alike(runs: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """The runs that have the seed, kind of machine and warm policy of one of the others."""
    there = {_twins(run) for run in others}
    return [run for run in runs if _twins(run) in there]


def counted(twins: Sequence[tuple[Record, Record]]) -> str:
    """How many pairs there are, and of how many warm policies."""
    return f"{len(twins)}, {policies_of(twins)}"


def policies_of(twins: Sequence[tuple[Record, Record]]) -> int:
    """Of how many warm policies pairs are."""
    return len({_twins(mine)[1:] for mine, _ in twins})


def _twins(run: Record) -> tuple[Any, ...]:
    return run["seed"], run.get("machine"), run.get("policy", 0)


def of_policies(twins: Sequence[tuple[Record, Record]], values: Array) -> Array:
    """The values of pairs, or the mean of each warm policy's where their lines number several: a
    policy of another kind of machine is another one."""
    policies = [_twins(mine)[1:] for mine, _ in twins]
    return values if len({number for _, number in policies}) < 2 else by_policy(twins, values)


def of_pairs(twins: Sequence[tuple[Record, Record]], quotients: Array, kind: str = "=") -> Ratio:
    """The geometric mean of the quotients of pairs, and what each warm policy has."""
    logs, count = np.log(quotients), policies_of(twins)
    each = np.exp(logs if count < 2 else by_policy(twins, logs))
    found = geometric(np.exp(of_policies(twins, logs)), kind)
    return replace(found, values=tuple(map(float, each)), policies=count)


def by_policy(twins: Sequence[tuple[Record, Record]], values: Array) -> Array:
    """The mean of the values of each warm policy's pairs."""
    policies = [_twins(mine)[1:] for mine, _ in twins]
    return np.array([
        np.mean([value for value, its in zip(values, policies, strict=True) if its == policy])
        for policy in dict.fromkeys(policies)
    ])  # fmt: skip


def t_interval(values: Array) -> tuple[float, float | None]:
    """The mean and half of its 95 % t-interval, None for one value."""
    middle, count = float(values.mean()), len(values)
    if count < 2:
        return middle, None
    quantile = T_975[min(count - 1, len(T_975)) - 1]
    return middle, quantile * float(values.std(ddof=1)) / math.sqrt(count)


def geometric(ratios: Sequence[float] | Array, kind: str = "=") -> Ratio:
    """The geometric mean of ratios and the 95 % t-interval of their logarithms."""
    middle, half = t_interval(np.log(ratios))
    if half is None:
        return Ratio(math.exp(middle), None, kind)
    return Ratio(math.exp(middle), (math.exp(middle - half), math.exp(middle + half)), kind)


def price(run: Record) -> float:
    """CPU seconds for 1,000 sampled tokens."""
    return float(1000 * run["cpu"] / run["tokens"])


def over_price(over: Sequence[Record], under: Sequence[Record]) -> Ratio | None:
    """The ratio of the prices of paired runs, None if there is no pair."""
    twins = pairs(over, under)
    quotients = np.array([price(mine) / price(other) for mine, other in twins])
    return of_pairs(twins, quotients) if twins else None


def _interval(first: Array, second: Array) -> tuple[float, float]:
    """The 95 % bootstrap interval of the ratio of two means."""
    rng = np.random.default_rng(0)
    drawn = [
        values[rng.integers(len(values), size=(DRAWS, len(values)))].mean(1)
        for values in (first, second)
    ]
    low, high = np.quantile(drawn[0] / drawn[1], (0.025, 0.975))
    return float(low), float(high)

"""The gate on a network: what useful, useless and harmful guidance cost with it and without."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np

from lab.results.cells import CELLS
from lab.results.experiments import EXPERIMENTS
from lab.results.findings import WORTH, over, select, shown, table
from lab.results.statistics import Cost, Ratio, Record, cost, of_pairs, pairs
from lab.results.taught import OF_KNOWN_WORTH

EXPERIMENT, WITHOUT = "e12", "no_retries"
BEFORE = 10
"""Steps before the success, over which the share of groups with retries is shown."""


def costs(records: Sequence[Record]) -> str:
    """Steps and tokens to a success of WORTH[0] of the three arms, for each cell and guidance."""
    rows = []
    for cell in EXPERIMENTS[EXPERIMENT][0].cells:
        for guidance in OF_KNOWN_WORTH:
            arms = [
                select(records, EXPERIMENT, cell, variant)
                for variant in (guidance, WITHOUT, f"{guidance}_gated")
            ]
            if not all(arms):
                continue
            gated = [retries(run) for run in arms[2]]
            bare = [
                select(records, EXPERIMENT, cell, f"{guidance}{end}")
                for end in ("_only", "_gated_only")
            ]
            rows.append([
                f"{CELLS[cell].base:g}",
                guidance,
                *map(_spent, arms),
                shown(over_the_better(*arms)),
                over(arms[0], arms[1], WORTH[0], "tokens"),
                f"{mean(gated):.2f}",
                *(_spent(runs) if runs else "–" for runs in bare),
                str(len(gated)),
            ])  # fmt: skip
    columns = ["guidance", "with retries", "without", "measured", "over the better",
               "with over without", "groups with retries",
               "with retries, no auxiliary loss", "measured, no auxiliary loss",
               "seeds"]  # fmt: skip
    return table(["base success", *columns], rows)


def retries(run: Record) -> float:
    """The share of groups with retries in the last BEFORE steps to the success."""
    end = int(cost(run, WORTH[0], "steps").amount)
    return 1 - float(mean(run["curve"]["gated"][max(0, end - BEFORE) : end]))


def over_the_better(
    with_retries: Sequence[Record], without: Sequence[Record], gated: Sequence[Record]
) -> Ratio:
    """The tokens of gated runs over those of the cheaper arm with the same seed."""
    quotients, mine, better = list[float](), list[Cost](), list[Cost]()
    for (run, one), (_, other) in zip(
        pairs(gated, with_retries), pairs(gated, without), strict=True
    ):
        arms = sorted((_tokens(one), _tokens(other)), key=lambda arm: (not arm.reached, arm.amount))
        mine.append(_tokens(run))
        better.append(arms[0])
        quotients.append(mine[-1].amount / arms[0].amount)
    late, endless = (not all(one.reached for one in arm) for arm in (mine, better))
    kind = "?" if late and endless else ">" if late else "<" if endless else "="
    return of_pairs(pairs(gated, with_retries), np.array(quotients), kind)


def _tokens(run: Any) -> Cost:
    return cost(run, WORTH[0], "tokens")


def _spent(runs: Sequence[Record]) -> str:
    return f"{_mean(runs, 'steps')}, {_mean(runs, 'tokens')}"


def _mean(runs: Sequence[Record], unit: str) -> str:
    """The mean cost; at least that much if a run did not get there."""
    found = [cost(run, WORTH[0], unit) for run in runs]
    mark = "" if all(one.reached for one in found) else "> "
    return f"{mark}{mean(one.amount for one in found):,.0f}"

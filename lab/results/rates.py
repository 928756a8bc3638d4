"""Both algorithms with their best learning rates. Some seeds choose a rate, others report it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from lab.results.cells import CELLS
from lab.results.experiments import GRPO_FASTER, R3L_FASTER, VARIANTS
from lab.results.findings import WORTH, over, select, table
from lab.results.statistics import UNITS, Record, cost, counted, pairs
from lab.results.tables import PAIRS

CHOOSING = 3
"""Seeds before it choose a rate; the others report it."""
KEPT = 0.9
"""A run that ends with less success had too high a rate."""
FASTER = {"r3l": R3L_FASTER, "grpo": GRPO_FASTER}


@dataclass(frozen=True)
class Choice:
    """The variant with the best rate. `apart`: its runs that are reported did not choose it."""

    variant: str
    apart: bool

    @property
    def label(self) -> str:
        """Its name in a table."""
        return VARIANTS[self.variant].label + ("" if self.apart else " ‡")


def best_rate(runs: Mapping[str, Sequence[Record]], algorithm: str, worth: float) -> Choice | None:
    """Which of the rates of grpo or r3l takes the fewest steps to a success of `worth`, by the
    runs of a cell by variant: those of the choosing seeds if every rate that can be reported has
    them, else the reported ones. A rate counts if every such run ends with a success of at least
    KEPT. None if fewer than two rates were tried, or none counts."""
    tried = [name for name in (algorithm, *FASTER[algorithm]) if reported(runs.get(name, ()))]
    if len(tried) < 2 or algorithm not in tried:
        return None
    apart = all(_choosing(runs[name]) == set(range(CHOOSING)) for name in tried)
    mine = {
        name: [run for run in runs[name] if (run["seed"] < CHOOSING) == apart] for name in tried
    }
    kept = [name for name in tried if all(run["success"] >= KEPT for run in mine[name])]

    def steps(name: str) -> float:
        return mean(cost(run, worth, "steps").amount for run in mine[name])

    return Choice(min(kept, key=steps), apart) if kept else None


def reported(runs: Iterable[Record]) -> list[Record]:
    """Those whose seeds do not choose."""
    return [run for run in runs if run["seed"] >= CHOOSING]


def _choosing(runs: Iterable[Record]) -> set[int]:
    return {run["seed"] for run in runs if run["seed"] < CHOOSING}


def over_tuned_grpo(records: Sequence[Record]) -> str:
    """R³L over GRPO with its best learning rate, in cells where both have several."""
    rows = []
    for cell, worth in ((cell, worth) for cell in CELLS for worth in WORTH):
        runs = {name: select(records, "e1", cell, name) for name in VARIANTS}
        ours, theirs = (best_rate(runs, algorithm, worth) for algorithm in ("r3l", "grpo"))
        if ours is None or theirs is None:
            continue
        under = reported(runs[theirs.variant])
        for choice in (Choice("r3l", apart=True), ours):
            mine = reported(runs[choice.variant])
            costs = [over(mine, under, worth, unit) for unit in UNITS]
            rows.append(
                [
                    CELLS[cell].title,
                    f"{worth:g}",
                    choice.label,
                    theirs.label,
                    *costs,
                    counted(pairs(mine, under)),
                ]
            )
    return table(["cell", "success", "R³L", "GRPO", *UNITS.values(), PAIRS], rows)


def missing_rates(records: Sequence[Record]) -> str:
    """Which rates have no runs, or none of the seeds that choose."""
    names = (*R3L_FASTER, *GRPO_FASTER)
    runs = {name: [r for r in records if r["variant"] == name] for name in names}
    none = [VARIANTS[name].label for name in names if not runs[name]]
    every = set(range(CHOOSING))
    some = [VARIANTS[name].label for name in names if runs[name] and _choosing(runs[name]) != every]
    parts = []
    if none:
        parts.append(f"Not run yet: {'; '.join(none)}.")
    if some:
        parts.append(f"Not run yet with all of the first {CHOOSING} seeds: {'; '.join(some)}.")
    return " ".join(parts) or "Every rate was run with every seed that chooses."

"""The ablations in a long row: what each loses against R³L, beside what was predicted."""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from lab.results.cells import LONG_ROW
from lab.results.experiments import LONG_ROW_SEEDS, LONG_ROW_VARIANTS, VARIANTS
from lab.results.findings import select, table
from lab.results.statistics import Record, pairs, smooth

Pair = tuple[Record, Record]

PREDICTED = {
    "no_credit": "0.05",
    "no_amplify": "0.05",
    "sft_none": "0, within 0.03",
}
"""By how much R³L was predicted to be above a variant; the others were not predicted."""


def state(records: Sequence[Record]) -> str:
    """How many of the runs there are."""
    made = sum(len(_runs(records, variant)) for variant in LONG_ROW_VARIANTS)
    if not made:
        return "No run of the long row was made yet, so none of this is known."
    return f"{made} of {len(LONG_ROW_VARIANTS) * LONG_ROW_SEEDS} runs were made."


def ablations(records: Sequence[Record]) -> str:
    """Success of every variant, and by how much that of R³L is above it, predicted and found."""
    ours, rows = _runs(records, "r3l"), []
    for variant in LONG_ROW_VARIANTS:
        runs = _runs(records, variant)
        if not runs:
            continue
        same = variant == "r3l"
        rows.append([
            VARIANTS[variant].label,
            f"{mean(map(first_attempts, runs)):.3f}",
            "–" if same else PREDICTED.get(variant, "nothing"),
            "–" if same else _above(pairs(ours, runs), _first),
            f"{mean(run['success'] for run in runs):.3f}",
            "–" if same else _above(pairs(ours, runs), _held_out),
            str(len(runs)),
        ])  # fmt: skip
    columns = ["last first attempts", "R³L above it, predicted", "found", "held-out tasks",
               "R³L above it", "seeds"]  # fmt: skip
    return table(["variant", *columns], rows)


def first_attempts(run: Record) -> float:
    """The success of its first attempts over its last steps."""
    return smooth(run["curve"]["success_base"])[-1]


def _first(pair: Pair) -> float:
    return first_attempts(pair[0]) - first_attempts(pair[1])


def _held_out(pair: Pair) -> float:
    ours, its = pair
    return float(ours["success"] - its["success"])


def _above(twins: Sequence[Pair], gap: Callable[[Pair], float]) -> str:
    """The mean of paired differences, and each of them."""
    if not twins:
        return "–"
    gaps = [gap(pair) for pair in twins]
    return f"{mean(gaps):+.3f} ({', '.join(f'{value:+.3f}' for value in gaps)})"


def _runs(records: Sequence[Record], variant: str) -> list[Any]:
    return select(records, "e10", LONG_ROW.name, variant)

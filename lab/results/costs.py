"""Ratios of costs by name, for the sentences of the pages."""

from collections.abc import Callable, Sequence

from lab.results.findings import select
from lab.results.statistics import Ratio, Record, alike, pairs, ratio

SAID = {"=": "", "<": "less than ", ">": "more than ", "?": "neither got there, "}


class Costs(dict[str, str]):
    """What a variant cost over another to a success, by `experiment cell variant/other unit`, such
    as `e2 base-0.13-rho-1 sft_none/r3l steps`, and the success, if it is not 0.5. R³L and GRPO are
    taken from the map where an experiment has no runs of its own of them. `said`: how a ratio is
    written. A dash if no two runs are a pair."""

    def __init__(self, records: Sequence[Record], said: Callable[[Ratio], str]) -> None:
        super().__init__()
        self._records, self._said = records, said

    def __missing__(self, name: str) -> str:
        experiment, cell, variants, unit, *worth = name.split()
        mine, theirs = (self._runs(experiment, cell, one) for one in variants.split("/"))
        if not pairs(mine, theirs):
            return "–"
        return self._said(ratio(mine, theirs, float(worth[0]) if worth else 0.5, unit))

    def _runs(self, experiment: str, cell: str, variant: str) -> list[Record]:
        own = select(self._records, experiment, cell, variant)
        if own or variant not in ("r3l", "grpo"):
            return own
        made = [r for r in self._records if (r["experiment"], r["cell"]) == (experiment, cell)]
        return alike(select(self._records, "e1", cell, variant), made)


def plain(found: Ratio) -> str:
    """A ratio alone, as a sentence says it."""
    return f"{SAID[found.kind]}{found.rounded:.2f}"

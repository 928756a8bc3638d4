"""From the lines of all experiments to rows: what R³L costs over its partners in every world."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lab.real_model.page import on_gpu
from lab.real_model.worlds import WORLDS
from lab.results.cells import CELLS, HINTED, LONG_ROW, TOLD, Cell
from lab.results.findings import WORTH, select
from lab.results.statistics import UNITS, Ratio, Record, alike, pairs, policies_of, ratio

PARTNERS = {
    "no_reflect": "R³L without reflection",
    "grpo_no_kl": "GRPO without reference",
    "grpo": "GRPO",
}
"""What R³L is compared with. All of SmolLM2's runs of GRPO are without a reference model."""
TOY = ("e1", "e10", "e11", "e13")
"""The experiments on cells, all with R³L as in the paper."""
GROUP = 8
"""Attempts of a group; R³L plays half of them plainly."""
NAMES = {
    "what": "workshop",
    "where": "workshop, remark says where",
    "lake": "FrozenLake",
    "kitchen_narrow": "TextWorld, narrow lessons",
    "kitchen": "TextWorld",
    "kitchen_sparse": "TextWorld, sparse reward",
}
"""What a row calls SmolLM2's worlds where success is rare."""
FEWEST = 3
"""Of fewer warm policies there is no interval."""


@dataclass(frozen=True)
class Comparison:
    """R³L over a partner: the ratio of costs to a success of WORTH by unit, of so many pairs of
    runs from so many warm policies."""

    partner: str
    ratios: Mapping[str, Ratio]
    pairs: int
    policies: int

    def below_one(self, unit: str) -> bool:
        """Whether the ratio is below 1 for sure: by an interval, over FEWEST policies or more."""
        found = self.ratios.get(unit)
        return found is not None and self.policies >= FEWEST and found.below_one is True


@dataclass(frozen=True)
class Row:
    """A world with a model. `base`: success before training. `contrast`: by what factor R³L has
    more groups of unequal rewards than plain attempts at that success; None if it is not known, or
    if failures differ in reward. `counts`: whether the warm policy counts."""

    model: str
    world: str
    base: float
    contrast: float | None
    comparisons: tuple[Comparison, ...]
    counts: bool = True

    def over(self, partner: str) -> Comparison | None:
        """The comparison with a partner, if there is one."""
        return next((each for each in self.comparisons if each.partner == partner), None)


def contrast_ratio(base: float, guided: float) -> float:
    """The chance that a group of R³L has unequal rewards, over that of GROUP plain attempts. Each
    attempt succeeds with the probability `base`, and a retry, which each of R³L's failed attempts
    gets, with `guided`."""
    half = GROUP // 2
    plain = 1 - (1 - base) ** GROUP - base**GROUP
    retried = 1 - ((1 - base) * (1 - guided)) ** half - base**half
    return retried / plain


def compared(partner: str, mine: Sequence[Record], theirs: Sequence[Record],
             units: Iterable[str] = tuple(UNITS)) -> Comparison | None:  # fmt: skip
    """R³L's runs over those of a partner; None if no two of them are a pair."""
    twins = pairs(mine, theirs)
    if not twins:
        return None
    ratios = {unit: ratio(mine, theirs, WORTH[0], unit) for unit in units}
    return Comparison(partner, ratios, len(twins), policies_of(twins))


def toy(records: Sequence[Record], warm: Mapping[str, Record]) -> list[Row]:
    """The cells of the regime map, those with other remarks, and the long row."""
    hinted = [cell.name for cell in HINTED]
    shown = [
        cell
        for cell in CELLS.values()
        if cell.world is not None or cell.name in (*hinted, LONG_ROW.name)
    ]
    rows = []
    for cell in shown:
        found = [_best(records, cell.name, partner) for partner in PARTNERS]
        known = warm.get(cell.name, {})
        guided = known.get("guided")
        if any(found):
            rows.append(
                Row(
                    model="1 M parameters",
                    world=_title(cell),
                    base=cell.base,
                    contrast=None if guided is None else contrast_ratio(cell.base, guided),
                    comparisons=tuple(filter(None, found)),
                    counts=known.get("told", 0.0) >= TOLD,
                )
            )
    return rows


def _title(cell: Cell) -> str:
    if cell == LONG_ROW:
        return "a long row"
    hint = {"where": ", remark says where", "none": ", no remark"}
    return f"workshop, ρ {cell.rho:g}{hint.get(str(cell.options.get('hint')), '')}"


def _best(records: Sequence[Record], cell: str, partner: str) -> Comparison | None:
    """The comparison of the experiment that has the most warm policies, then the most pairs."""
    found = []
    for experiment in TOY:
        theirs = select(records, experiment, cell, partner)
        mine = select(records, experiment, cell, "r3l")
        mine = mine or alike(select(records, "e1", cell, "r3l"), theirs)
        found.append(compared(partner, mine, theirs))
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: (each.policies, each.pairs), default=None)


def smollm2(rare: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]]) -> list[Row]:
    """The worlds of SmolLM2: those where success is rare, and the workshop at 0.25."""
    rows = [_rare(rare, name) for name in WORLDS]
    for gpu in (False, True):
        made = [x for x in earlier if x["kind"] == "workshop" and on_gpu(x) == gpu]
        rows.append(_workshop(made, gpu))
    return [row for row in rows if row is not None]


def _rare(lines: Sequence[dict[str, Any]], world: str) -> Row | None:
    runs = [line for line in lines if (line["kind"], line["world"]) == ("run", world)]
    mine = [run for run in runs if run["variant"] == "r3l"]
    found = _smollm2_over(mine, runs, UNITS)
    if not found:
        return None
    probed = [_probe_of(run, lines) for run in mine]
    base, guided = (fmean(probe[name] for probe in probed) for name in ("success", "guided"))
    contrast = contrast_ratio(base, guided) if base and not WORLDS[world].graded else None
    counts = all(WORLDS[world].counts(probe) for probe in probed)
    return Row("SmolLM2", NAMES[world], base, contrast, found, counts)


def _probe_of(run: Record, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = ("machine", "world", "seed", "warm_steps", "options")
    wanted = {"kind": "probe"} | {name: run[name] for name in names}
    return next(line for line in lines if line.items() >= wanted.items())


def _workshop(runs: Sequence[dict[str, Any]], gpu: bool) -> Row | None:
    mine = [run for run in runs if run["variant"] == "r3l"]
    found = _smollm2_over(mine, runs, ("steps", "tokens") if gpu else UNITS)
    if not found:
        return None
    base = fmean(run["evaluations"][0][1] for run in runs)
    gain = fmean(run["means"]["group/guidance_gain"] for run in mine)
    world = "workshop, on a GPU" if gpu else "workshop, four rules withheld"
    return Row("SmolLM2", world, base, contrast_ratio(base, min(base + gain, 1.0)), found)


def _smollm2_over(
    mine: Sequence[Record], runs: Sequence[Record], units: Iterable[str]
) -> tuple[Comparison, ...]:
    units = tuple(units)
    theirs = {
        partner: [run for run in runs if run["variant"] == variant]
        for partner, variant in (("no_reflect", "no_reflect"), ("grpo_no_kl", "grpo"))
    }
    found = (compared(partner, mine, made, units) for partner, made in theirs.items())
    return tuple(filter(None, found))

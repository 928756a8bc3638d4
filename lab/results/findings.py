"""What the lines say in words: the claim, the predictions beside what was found, single numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from lab.idealised import WORLDS
from lab.results.cells import BASES, BRIEF, CELLS, CUT_OFF, EASIEST, TOLD, Cell
from lab.results.experiments import ESTIMATORS, REPLAYED, VARIANTS
from lab.results.statistics import (
    UNITS,
    Ratio,
    Record,
    alike,
    cost,
    geometric,
    over_price,
    pairs,
    ratio,
)
from r3l.algorithms.registry import REGISTRY

WORTH = (0.5, 0.8)
RHOS = (2.4, 1.0, 0.3)
HARD = 0.01  # base success up to which the claim is made
SEEDS = 2  # of R³L and of GRPO, for a verdict on the claim
FEWEST = 3
"""Of fewer warm policies no interval is shown."""
GOT_THERE = 0.9

FIRST = ((0.13, 1.00), (0.02, 0.79), (0.007, 0.76), (0.0014, 0.45), (0.0002, 0.40))
"""The first prediction: base success and step ratio, of the worlds nearest to those of BASES."""
FIRST_CROSSINGS = {1.0: "near 0.01", 0.3: "near 0.1"}
"""The first prediction: base success from which R³L needs fewer tokens, by ρ."""

Predicted = Sequence[Mapping[str, Any]]


def select(records: Iterable[Record], experiment: str, cell: str, variant: str) -> list[Record]:
    """The runs of one variant in one cell of an experiment."""
    wanted = (experiment, cell, variant)
    return [r for r in records if (r["experiment"], r["cell"], r["variant"]) == wanted]


def against(
    records: Sequence[Record], experiment: str, cell: str, variant: str
) -> tuple[list[Record], list[Record]]:
    """The runs of a variant in an experiment, and those of GRPO that they are compared with: of the
    experiment itself, else of the map. R³L with its defaults is taken from the map as well: the
    runs with the seed, machine and warm policy of one that the experiment has."""
    grpo = select(records, experiment, cell, "grpo") or select(records, "e1", cell, "grpo")
    ours = select(records, experiment, cell, variant)
    if not ours and variant == "r3l":
        mine = [r for r in records if (r["experiment"], r["cell"]) == (experiment, cell)]
        ours = alike(select(records, "e1", cell, "r3l"), mine)
    return ours, grpo


def policies(lines: Iterable[Record], experiment: str | None = None) -> dict[str, Record]:
    """What was measured of the warm policies of every cell: the mean if it has several, how many it
    has (`policies`), and the lowest `told` of one of them. `experiment`: only of policies
    that it warmed itself in cells of the map."""
    mine: dict[str, list[Record]] = {}
    for line in lines:
        if line.get("experiment") == experiment:
            mine.setdefault(line["cell"], []).append(line)
    return {
        cell: {
            name: mean(line[name] for line in its)
            for name in its[0]
            if all(isinstance(line.get(name), int | float) for line in its)
        }
        | {"policies": len(its), "lowest told": min(line["told"] for line in its)}
        for cell, its in mine.items()
    }


def told_less(warm: Mapping[str, Record], cells: Iterable[str]) -> str:
    """The cells whose `told`, the mean of their policies, is too low to count."""
    told = {cell: warm[cell]["told"] for cell in cells if cell in warm}
    few = [f"{titled(cell)} ({value:.3f})" for cell, value in told.items() if value < TOLD]
    return ", ".join(few) or "none"


def titled(cell: str) -> str:
    """What a table calls a cell."""
    return CELLS[cell].title if cell in CELLS else cell


def cell_of(base: float, rho: float) -> Cell:
    """The cell of the map that stands for a base success and a ρ."""
    return next(c for c in CELLS.values() if c.world and (c.base, c.rho) == (base, rho))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of the page."""
    if not rows:
        return "(no runs)"
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(found: Ratio) -> str:
    """A ratio with its interval over FEWEST warm policies or more; of fewer with what each policy
    has, of one policy with what each seed has. A bound stands alone: its spread says nothing."""
    if found.kind == "?":
        return "neither"
    sign = "" if found.kind == "=" else f"{found.kind} "
    said = f"{sign}{found.rounded:.2f}"
    if len(found.values) == 1:
        return f"{said} (one seed)"
    if sign or not found.values:
        return said
    if found.policies >= FEWEST and found.interval:
        low, high = found.interval
        return f"{said} ({low:.2f}–{high:.2f})"
    return f"{said} ({', '.join(f'{value:.2f}' for value in found.values)})"


def over(mine: Sequence[Record], other: Sequence[Record], worth: float, unit: str) -> str:
    """What `mine` cost over `other`; a dash if no two runs are a pair."""
    return shown(ratio(mine, other, worth, unit)) if pairs(mine, other) else "–"


def summaries(records: Sequence[Record], warm: Mapping[str, Record]) -> str:
    """What brief summaries save: runs in the cells of BRIEF over those in the map that were made on
    the same kind of processor. Their seeds are others, as are their warm policies."""
    compared = (("r3l", "tokens"), ("r3l_failures", "tokens"), ("r3l", "steps"), ("grpo", "steps"))
    rows = []
    for cell in BRIEF:
        full = cell.name.removesuffix("-brief")
        row = []
        for variant, unit in compared:
            brief = select(records, "e2", cell.name, variant)
            machines = {run.get("machine") for run in brief}
            known = select(records, "e1", full, "grpo" if variant == "grpo" else "r3l")
            same = [run for run in known if run.get("machine") in machines]
            row.append(shown(ratio(brief, same, WORTH[0], unit)) if brief and same else "–")
        mine, its = warm.get(cell.name, {}), warm.get(full, {})
        costs = (f"{one.get('reflection_cost', float('nan')):.1f}" for one in (its, mine))
        mark = "" if mine.get("told", 0.0) >= TOLD else " †"
        rows.append([CELLS[full].title + mark, *costs, *row])
    columns = ["ρ, full", "ρ, brief", "R³L, tokens", "on failures, tokens", "R³L, steps"]
    return table(["cell", *columns, "GRPO, steps"], rows)


def both(records: Sequence[Record], base: float, rho: float) -> tuple[list[Record], list[Record]]:
    """The runs of R³L and of GRPO in a cell of the map."""
    name = cell_of(base, rho).name
    return select(records, "e1", name, "r3l"), select(records, "e1", name, "grpo")


def ratios_to_half(
    records: Sequence[Record], warm: Mapping[str, Record]
) -> dict[str, dict[float, list[tuple[float, Ratio, bool]]]]:
    """R³L over GRPO to the first success of WORTH, by unit and ρ: base success, ratio, and whether
    the cell counts."""
    return {
        unit: {
            rho: [
                (base, ratio(*both(records, base, rho), WORTH[0], unit),
                 warm.get(cell_of(base, rho).name, {}).get("told", 0.0) >= TOLD)
                for base in BASES
                if all(both(records, base, rho))
            ]
            for rho in RHOS
        }
        for unit in ("steps", "tokens")
    }  # fmt: skip


def _verdict(over: Sequence[Record], under: Sequence[Record], worth: float, unit: str) -> str:
    if min(len(over), len(under)) < SEEDS:
        return "too few runs"
    below = ratio(over, under, worth, unit).below_one
    return {True: "holds", False: "does not hold", None: "undecided"}[below]


def _units(rho: float) -> tuple[str, ...]:
    """The units in which the claim is made."""
    return ("steps", "tokens") if rho <= 1 else ("steps",)


def claim(records: Sequence[Record], warm: Mapping[str, Record]) -> str:
    """The claim, cell by cell."""
    rows = []
    for base, rho in _hard():
        ours, theirs = both(records, base, rho)
        told = warm.get(cell_of(base, rho).name, {}).get("told")
        counts = "–" if told is None else "yes" if told >= TOLD else f"no, told {told:.3f}"
        for unit in _units(rho):
            verdicts = [_verdict(ours, theirs, worth, unit) for worth in WORTH]
            rows.append([f"{base:g}", f"{rho:g}", UNITS[unit], *verdicts, counts])
    columns = ["ρ", "unit", *(f"to {worth:g}" for worth in WORTH), "counts"]
    return table(["base success", *columns], rows)


def claim_in_words(records: Sequence[Record], warm: Mapping[str, Record]) -> str:
    """In how many cells the claim holds, of those that count by the policy's `told`, and of those
    in which R³L got there."""
    counted, arrived, others = [], [], []
    for base, rho in _hard():
        ours, theirs = both(records, base, rho)
        told = warm.get(cell_of(base, rho).name, {}).get("told")
        enough = min(len(ours), len(theirs)) >= SEEDS
        if enough and told is not None and told >= TOLD:
            counted.append((base, rho))
        elif not enough:
            seeds = f"{len(ours)} of R³L and {len(theirs)} of GRPO"
            others.append(f"{base:g} at ρ {rho:g} (seeds: {seeds})")
        else:
            others.append(
                f"{base:g} at ρ {rho:g} (told {'unknown' if told is None else f'{told:.3f}'})"
            )
        if enough and all(run["success"] >= GOT_THERE for run in ours):
            arrived.append((base, rho))
    return (
        f"Cells that count (told ≥ {TOLD:g}, at least {SEEDS} seeds of both algorithms): "
        f"{len(counted)} of {len(_hard())}. The whole claim holds in "
        f"{_holding(records, counted)} of them. Not counted: {'; '.join(others) or 'none'}.\n\n"
        "The limit on `told` makes sure that a policy can get there. Whatever `told` was, every "
        f"run of R³L got there and ended with a success of at least {GOT_THERE:g} in "
        f"{len(arrived)} of {len(_hard())} cells, with at least {SEEDS} seeds of both algorithms; "
        f"the claim holds in {_holding(records, arrived)} of these cells. This count selects cells "
        "by the outcome, so it does not replace the first."
    )


def _hard() -> list[tuple[float, float]]:
    return [(base, rho) for base in BASES if base <= HARD for rho in RHOS]


def _holding(records: Sequence[Record], cells: Sequence[tuple[float, float]]) -> int:
    return sum(
        all(
            _verdict(*both(records, base, rho), worth, unit) == "holds"
            for unit in _units(rho)
            for worth in WORTH
        )
        for base, rho in cells
    )


def predictions(records: Sequence[Record], predicted: Predicted) -> str:
    """Step ratios: the first prediction, that of the table, and what was found at ρ = 1."""
    rows = []
    for base, (near, first), guess in zip(BASES, FIRST, predicted, strict=True):
        ours, theirs = both(records, base, 1.0)
        found = [shown(ratio(ours, theirs, w, "steps")) if ours and theirs else "–" for w in WORTH]
        table_says = [f"{guess[f'to_{worth}']['ratio']['steps']:.2f}" for worth in WORTH]
        rows.append([f"{base:g}", f"{first:.2f} (at {near:g})", *table_says, *found])
    columns = [f"{who} to {worth:g}" for who in ("table,", "found at ρ 1,") for worth in WORTH]
    return table(["base success", "first prediction", *columns], rows)


def crossings(records: Sequence[Record], predicted: Predicted) -> str:
    """Base success from which R³L needs fewer tokens than GRPO: predicted twice, and found."""
    rows = []
    for rho in RHOS:
        for worth in WORTH:
            guessed = [
                (base, float(guess[f"to_{worth}"]["ratio"][f"tokens_rho_{rho}"]))
                for base, guess in zip(BASES, predicted, strict=True)
            ]
            found = [(base, _side(*both(records, base, rho), worth)) for base in BASES]
            known = [(base, side) for base, side in found if side is not None]
            cells = f"{len(known)} cell{'' if len(known) == 1 else 's'}"
            rows.append([
                f"{rho:g}", f"{worth:g}", FIRST_CROSSINGS.get(rho, "–"), crossing(guessed),
                f"{crossing(known)} ({cells})" if known else "not enough runs",
            ])  # fmt: skip
    return table(["ρ", "to success", "first prediction", "table", "found"], rows)


def _side(ours: Sequence[Record], theirs: Sequence[Record], worth: float) -> float | None:
    """The ratio of tokens, if the runs say on which side of 1 it is."""
    if min(len(ours), len(theirs)) < SEEDS:
        return None
    found = ratio(ours, theirs, worth, "tokens")
    told = {"=": True, "<": found.value < 1, ">": found.value > 1, "?": False}[found.kind]
    return found.value if told else None


def crossing(points: Sequence[tuple[float, float]]) -> str:
    """Where ratios, at least one, fall below 1 as base success falls."""
    below = [value < 1 for _, value in points]
    changes = [i for i in range(1, len(points)) if below[i] != below[i - 1]]
    if not changes:
        return f"above {points[0][0]:g}" if below[0] else f"below {points[-1][0]:g}"
    if len(changes) > 1 or below[0]:
        return "more than once"
    return f"between {points[changes[0] - 1][0]:g} and {points[changes[0]][0]:g}"


def worlds() -> dict[str, str]:
    """What the worlds of the map share, and what differs."""
    return {
        "stations": _listed({world.stations for world in WORLDS}),
        "tools": _listed({world.tools for world in WORLDS}),
        "withheld": _listed({world.withheld for world in WORLDS}),
    }


def _listed(values: set[int]) -> str:
    *others, last = map(str, sorted(values))
    return f"{', '.join(others)} or {last}" if others else last


def not_trained(records: Iterable[Record]) -> str:
    """Which algorithms no line is a run of. Lines count as what their settings were called."""
    used = set()
    for variant in {record["variant"] for record in records}:
        known = VARIANTS.get(variant)
        settings = (known.named or known.overrides) if known else ()
        used |= {s.removeprefix("algorithm=") for s in settings if s.startswith("algorithm=")}
    names = ", ".join(f"`{name}`" for name in sorted(REGISTRY) if name not in used)
    if not names:
        return "every algorithm that can be chosen is trained on this page."
    return (
        f"no run on this page trains {names}. Their losses and advantages are tested against "
        "literal numbers. How these algorithms compare with R³L is not known here."
    )


class Numbers(dict[str, str]):
    """Numbers of the page's sentences by name; "–" if there are no lines for one."""

    def __missing__(self, name: str) -> str:
        return "–"


def numbers(
    records: Sequence[Record], gradients: Sequence[Record], systems: Sequence[Record]
) -> Numbers:
    """By `experiment cell variant what`, such as `e0 grpo success` (in EASIEST), `e4 0 credit
    noise`, `e2 base-0.13-rho-1 sft_none steps` (to 0.5 over GRPO's), `e5 r3l reward`
    (in ScienceWorld), `e5 base-0.13-rho-1 r3l seconds` (to 0.5 over GRPO's), `e1 base-0.13-rho-1
    r3l twin cpu` (to 0.5 over those of R³L without reflection) and `e11 base-0.13-rho-1 r3l price`
    (of a token, over that of GRPO without reference)."""
    found, scores = Numbers(), dict[str, float]()
    for step in {line["step"] for line in gradients}:
        mine = [line for line in gradients if line["step"] == step]
        for name in ESTIMATORS:
            for what, digits in (("noise", 1), ("cosine", 2)):
                value = mean(line[name][what] for line in mine)
                found[f"e4 {step} {name} {what}"] = f"{value:.{digits}f}"
    for variant in VARIANTS:
        if runs := select(records, "e0", EASIEST.name, variant):
            found[f"e0 {variant} success"] = _mean(runs, "success")
            reached = [cost(run, 0.5, "tokens") for run in runs]
            if all(one.reached for one in reached):
                found[f"e0 {variant} tokens"] = f"{mean(one.amount for one in reached):,.0f}"
        if runs := select(systems, "e5", "scienceworld", variant):
            for name in ("before", "success", "before_reward", "reward"):
                found[f"e5 {variant} {name}"] = _mean(runs, name)
            found[f"e5 {variant} seeds"] = str(len(runs))
            scores[variant] = mean(run["reward"] for run in runs)
        for cell in CELLS:
            runs, plain = (select(systems, "e5", cell, name) for name in (variant, "grpo"))
            if runs and plain:
                found[f"e5 {cell} {variant} seconds"] = shown(ratio(runs, plain, 0.5, "wall"))
            if runs := select(records, "e1", cell, variant):
                found[f"e1 {cell} {variant} success"] = _mean(runs, "success")
            if runs and (twin := select(records, "e1", cell, "no_reflect")):
                found[f"e1 {cell} {variant} twin cpu"] = over(runs, twin, 0.5, "cpu")
            mine, plain = (select(records, "e11", cell, name) for name in (variant, "grpo_no_kl"))
            if known := over_price(mine, plain):
                found[f"e11 {cell} {variant} price"] = shown(known)
            for experiment in ("e1", "e2", "e10", "e11"):
                runs, baseline = against(records, experiment, cell, variant)
                for unit in UNITS if runs and baseline else ():
                    costs = over(runs, baseline, 0.5, unit)
                    found[f"{experiment} {cell} {variant} {unit}"] = costs
    found |= _stored_numbers(records) | _ranking_numbers(records) | _of_a_quarter(records)
    if {"r3l", "grpo"} <= scores.keys():
        gain = scores["r3l"] - scores["grpo"]
        found["e5 gain"] = f"a gain of {gain:.3f}" if gain > 0 else "no gain"
    return found


def _of_a_quarter(records: Sequence[Record]) -> dict[str, str]:
    """`e11 sft_quarter over sft_none steps`: costs to 0.5 of R³L with a quarter of its auxiliary
    samples, over none and over all, as the geometric mean over the cells that have both."""
    found, quarter = dict[str, str](), "sft_quarter"
    for other in ("sft_none", "r3l"):
        arms = [[select(records, "e11", cell, name) for name in (quarter, other)] for cell in CELLS]
        both = [(mine, its) for mine, its in arms if pairs(mine, its)]
        for unit in ("steps", "cpu") if both else ():
            quotients = [ratio(mine, its, WORTH[0], unit).value for mine, its in both]
            found[f"e11 {quarter} over {other} {unit}"] = shown(
                replace(geometric(quotients), policies=len(quotients), values=tuple(quotients))
            )
    return found


def _stored_numbers(records: Sequence[Record]) -> dict[str, str]:
    """CPU seconds to 0.5 with stored groups: `e6 spear cpu` over GRPO's, `e6 spear r3l cpu` over
    those of R³L without replay."""
    runs = {variant: select(records, "e6", REPLAYED, variant) for variant in VARIANTS}
    return {
        f"e6 {variant} {name}": over(its, runs[baseline], 0.5, "cpu")
        for variant, its in runs.items()
        for name, baseline in (("cpu", "stored_grpo"), ("r3l cpu", "stored_r3l"))
        if its
    }


def _ranking_numbers(records: Sequence[Record]) -> dict[str, str]:
    """The share of first attempts that are cut off: `e9 cut-off`. Steps to 0.5 of a ranking over
    those of runs without: `e9 cut-off ranked`."""
    found = {}
    for cell in CUT_OFF:
        if runs := [r for r in records if (r["experiment"], r["cell"]) == ("e9", cell.name)]:
            share = mean(run["curve"]["cut_off"][0] for run in runs)
            found[f"e9 {cell.name}"] = f"{share:.2f}"
        plain = select(records, "e9", cell.name, "unranked")
        for variant in ("ranked", "ranked_random"):
            if plain and (runs := select(records, "e9", cell.name, variant)):
                found[f"e9 {cell.name} {variant}"] = over(runs, plain, 0.5, "steps")
    return found


def _mean(runs: Sequence[Record], name: str) -> str:
    return f"{mean(run[name] for run in runs):.3f}"


def without_retries(found: Numbers) -> str:
    """How R³L without retries compares with GRPO where the controls were run."""
    cells = ("base-0.13-rho-1", "base-0.002-rho-1")
    keys = {cell: f"e1 {cell} no_reflect steps" for cell in cells}
    known = [f"{found[key]} at {titled(cell)}" for cell, key in keys.items() if key in found]
    if not known:
        return "no run of it was made in these cells, so GRPO takes its place"
    return f"its steps to 0.5 over those of GRPO are {' and '.join(known)}"


def other_rates(records: Iterable[Record]) -> str:
    """Whether GRPO was run with other learning rates."""
    if any(record["variant"].startswith("grpo_lr_") for record in records):
        others = "[others](appendix/variants.md#learning-rates) of GRPO and of R³L in two cells"
        return f"one learning rate ({others})"
    return "one learning rate, also for GRPO: no run with another one was made"


def offline_gaps(lines: Sequence[Record], variants: Mapping[str, tuple[str, Any]]) -> str:
    """What is missing for the intervals of the offline runs."""
    counts = {label: sum(line["variant"] == v for line in lines)
              for v, (label, _) in variants.items()}  # fmt: skip
    parts = []
    if none := [label for label, count in counts.items() if not count]:
        parts.append(f"Not run: {', '.join(none)}.")
    if one := [label for label, count in counts.items() if count == 1]:
        parts.append(f"One seed, so no interval: {', '.join(one)}.")
    return " ".join(parts)

"""The tables of the results pages."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from lab.results.cells import BASES, CELLS, TOLD
from lab.results.experiments import (
    ESTIMATORS,
    EXPERIMENTS,
    GRPO_FASTER,
    OFFLINE,
    R3L_FASTER,
    VARIANTS,
)
from lab.results.findings import (
    RHOS,
    WORTH,
    against,
    both,
    cell_of,
    over,
    shown,
    table,
)
from lab.results.statistics import (
    UNITS,
    Record,
    ceiling,
    cost,
    counted,
    over_price,
    pairs,
    price,
    smooth,
)

FINAL = ("success", "steps", "attempts")
ALONE_AT_FIRST = ("grpo", "r3l", "unranked")
"""Variants whose first attempts see nothing that is stored."""
PAIRS = "seeds, policies"
"""The column that says how many pairs of runs a ratio has, and of how many warm policies."""
LABELS = {name: variant.label for name, variant in VARIANTS.items()}


def variants_of(experiment: str) -> list[str]:
    """R³L with its defaults, then what the experiment varies."""
    varied = (variant for part in EXPERIMENTS[experiment] for variant in part.variants)
    return [name for name in dict.fromkeys(("r3l", *varied)) if name != "grpo"]


def runs_of(records: Sequence[Record], experiment: str, cell: str) -> dict[str, list[Record]]:
    """The runs of a cell by variant."""
    mine = [r for r in records if r["experiment"] == experiment and r["cell"] == cell]
    return {v: [r for r in mine if r["variant"] == v] for v in VARIANTS if _any(mine, v)}


def _any(records: Sequence[Record], variant: str) -> bool:
    return any(record["variant"] == variant for record in records)


def regime_map(
    records: Sequence[Record],
    predicted: Sequence[dict[str, Any]],
    warm: Mapping[str, Record],
) -> str:
    """R³L over GRPO in every cell, predicted and measured."""
    rows = []
    for base, guess in zip(BASES, predicted, strict=True):
        for rho in RHOS:
            ours, theirs = both(records, base, rho)
            told = warm.get(cell_of(base, rho).name, {}).get("told", 0.0)
            mark = "" if told >= TOLD else " †"
            for worth in WORTH:
                foreseen = guess[f"to_{worth}"]["ratio"]
                shown = [
                    str(foreseen["steps"]),
                    over(ours, theirs, worth, "steps"),
                    str(foreseen[f"tokens_rho_{rho}"]),
                    over(ours, theirs, worth, "tokens"),
                    over(ours, theirs, worth, "cpu"),
                    counted(pairs(ours, theirs)),
                ]
                rows.append([f"{base:g}{mark}", f"{rho:g}", f"{worth:g}", *shown])
    columns = ["ρ", "success", "steps, predicted", "steps", "tokens, predicted", "tokens",
               "CPU seconds", PAIRS]  # fmt: skip
    return table(["base success", *columns], rows)


def map_to_half(records: Sequence[Record], warm: Mapping[str, Record]) -> str:
    """Rows of R³L over GRPO to the first success of WORTH, one for each cell."""
    rows = []
    for base in BASES:
        for rho in RHOS:
            ours, theirs = both(records, base, rho)
            mark = "" if warm.get(cell_of(base, rho).name, {}).get("told", 0.0) >= TOLD else " †"
            costs = [over(ours, theirs, WORTH[0], unit) for unit in UNITS]
            rows.append([f"{base:g}{mark}", f"{rho:g}", *costs, counted(pairs(ours, theirs))])
    columns = ["ρ", "steps", "tokens", "CPU seconds", PAIRS]
    return table(["base success", *columns], rows)


def warm_policies(
    warm: dict[str, Any], records: Sequence[Record], cells: Iterable[str] = tuple(CELLS)
) -> str:
    """What was measured of the warm policy of each cell."""
    columns = (
        "success",
        "told",
        "lowest told",
        "parsed",
        "pivots",
        "guided",
        "restart",
        "reflection_cost",
    )
    rows = []
    for name in (name for name in cells if name in warm):
        mine = (r for r in records if r["cell"] == name and r["variant"] in ALONE_AT_FIRST)
        first = [run["curve"]["success_base"][0] for run in mine]
        begun = f"{mean(first):.3f}" if first else "–"
        shown = [_number(warm[name].get(column)) for column in columns]
        rows.append([CELLS[name].title, begun, *shown, str(warm[name]["policies"])])
    return table(["cell", "first attempts", *columns, "policies"], rows)


def over_grpo(records: Sequence[Record], experiment: str, variants: Iterable[str]) -> str:
    """Ratios of variants to GRPO in the same cell."""
    rows = []
    variants = list(variants)
    for cell in CELLS:
        for variant in variants:
            ours, grpo = against(records, experiment, cell, variant)
            if pairs(ours, grpo):
                shown = [over(ours, grpo, worth, unit) for worth in WORTH for unit in UNITS]
                rows.append(
                    [CELLS[cell].title, LABELS[variant], *shown, counted(pairs(ours, grpo))]
                )
    columns = [f"{UNITS[unit]} to {worth:g}" for worth in WORTH for unit in UNITS]
    return table(["cell", "variant", *columns, PAIRS], rows)


def without_auxiliary(records: Sequence[Record]) -> str:
    """R³L without auxiliary samples (e2) over R³L (of the map), for the seeds that both have."""
    rows = []
    for cell in CELLS:
        ours = runs_of(records, "e2", cell).get("sft_none", [])
        whole = runs_of(records, "e1", cell).get("r3l", [])
        if ours and whole:
            costs = [over(ours, whole, worth, unit) for worth in WORTH for unit in UNITS]
            rows.append([CELLS[cell].title, *costs, counted(pairs(ours, whole))])
    columns = [f"{UNITS[unit]} to {worth:g}" for worth in WORTH for unit in UNITS]
    return table(["cell", *columns, PAIRS], rows)


def per_token(records: Sequence[Record], experiment: str, baseline: str) -> str:
    """CPU seconds for 1,000 sampled tokens of each variant, and over those of `baseline` in the
    runs of the same seed and machine."""
    rows = []
    for cell in CELLS:
        runs = runs_of(records, experiment, cell)
        for variant, made in runs.items():
            found = over_price(made, runs.get(baseline, []))
            quotient = "1" if variant == baseline else "–" if found is None else shown(found)
            prices = _pm([price(run) for run in made], 2)
            rows.append([CELLS[cell].title, LABELS[variant], prices, quotient, str(len(made))])
    price_column, over_column = "CPU seconds for 1,000 tokens", f"over {LABELS[baseline]}"
    return table(["cell", "variant", price_column, over_column, "seeds"], rows)


def over_variant(
    records: Sequence[Record], experiment: str, baseline: str, without: str = ""
) -> str:
    """Ratios of all variants but GRPO and `without` to `baseline` in the same cell of an
    experiment."""
    rows = []
    for cell in CELLS:
        runs = runs_of(records, experiment, cell)
        for variant in (name for name in runs if name not in ("grpo", baseline, without)):
            if twins := runs.get(baseline):
                mine = runs[variant]
                costs = [over(mine, twins, worth, unit) for worth in WORTH for unit in UNITS]
                rows.append(
                    [CELLS[cell].title, LABELS[variant], *costs, counted(pairs(mine, twins))]
                )
    columns = [f"{UNITS[unit]} to {worth:g}" for worth in WORTH for unit in UNITS]
    return table(["cell", "variant", *columns, PAIRS], rows)


def same_rate(records: Sequence[Record]) -> str:
    """R³L over GRPO with the same learning rate."""
    rates = zip(("r3l", *R3L_FASTER), ("grpo", *GRPO_FASTER), strict=True)
    pairs = [(cell, *pair) for pair in rates for cell in CELLS]
    rows = []
    for cell, ours, theirs in sorted(pairs, key=lambda pair: list(CELLS).index(pair[0])):
        runs = runs_of(records, "e1", cell)
        if ours in runs and theirs in runs and R3L_FASTER[0] in runs:
            costs = [over(runs[ours], runs[theirs], at, unit) for at in WORTH for unit in UNITS]
            rows.append([CELLS[cell].title, LABELS[ours], LABELS[theirs], *costs])
    columns = [f"{UNITS[unit]} to {worth:g}" for worth in WORTH for unit in UNITS]
    return table(["cell", "R³L", "GRPO", *columns], rows)


def final(runs: dict[str, list[Record]]) -> str:
    """What each variant reached, and what it took to each success of WORTH."""
    rows = [
        [
            LABELS[name],
            *(_spread([run[c] for run in made]) for c in FINAL),
            *(_costs(made, worth, unit) for worth in WORTH for unit in UNITS),
            str(len(made)),
        ]
        for name, made in runs.items()
    ]
    columns = [f"{UNITS[unit]} to {worth:g}" for worth in WORTH for unit in UNITS]
    return table(["", *FINAL, *columns, "seeds"], rows)


def _costs(runs: Sequence[Record], worth: float, unit: str) -> str:
    """What it took to reach a success, in the runs that did; a dash if none did."""
    costs = [cost(run, worth, unit) for run in runs]
    amounts = [one.amount for one in costs if one.reached]
    if not amounts:
        return "–"
    some = f" ({len(amounts)} of {len(costs)})" if len(amounts) < len(costs) else ""
    return _spread(amounts) + some


def gradients(lines: Sequence[dict[str, Any]]) -> str:
    """Noise and direction of the gradient by estimator."""
    rows = []
    for step in sorted({line["step"] for line in lines}):
        mine = [line for line in lines if line["step"] == step]
        known = _pm([ceiling(line["halves"]) for line in mine], 2)
        for name, (label, _) in ESTIMATORS.items():
            noise, cosine = ([line[name][what] for line in mine] for what in ("noise", "cosine"))
            rows.append([str(step), label, _pm(noise, 1), _pm(cosine, 2), known, str(len(mine))])
    return table(["after step", "estimator", "noise", "cosine", "ceiling", "seeds"], rows)


def offline(lines: Sequence[dict[str, Any]]) -> str:
    """What offline steps gained."""
    rows = []
    for variant, (label, _) in OFFLINE.items():
        mine = [line for line in lines if line["variant"] == variant]
        if mine:
            before, after = ([line[when] for line in mine] for when in ("before", "after"))
            gains = [end - start for start, end in zip(before, after, strict=True)]
            each = f" ({', '.join(f'{gain:+.3f}' for gain in gains)})" if len(gains) > 1 else ""
            drift = [line["trust"] for line in mine]
            shown = [
                f"{mean(gains):+.3f}{each}",
                f"{mean(one['ess'] for one in drift):.2f}",
                f"{mean(one['kl'] for one in drift):.3f}",
            ]
            rows.append([label, _spread(before), _spread(after), *shown, str(len(mine))])
    columns = ["stopped", "after", "gain", "effective sample size", "KL, nats a token"]
    return table(["", *columns, "seeds"], rows)


def wall_clock(records: Sequence[Record]) -> str:
    """R³L over GRPO in whole systems."""
    rows = []
    for cell in CELLS:
        runs = runs_of(records, "e5", cell)
        ours, theirs = runs.get("r3l", []), runs.get("grpo", [])
        if ours and theirs:
            shown = [
                over(ours, theirs, worth, unit)
                for worth in WORTH
                for unit in ("steps", "tokens", "wall")
            ]
            rows.append([CELLS[cell].title, *shown, f"{len(ours)}, {len(theirs)}"])
    columns = [f"{unit} to {worth:g}" for worth in WORTH for unit in ("steps", "tokens", "seconds")]
    return table(["cell", *columns, "seeds"], rows)


def scienceworld(records: Sequence[Record], cell: str, steps: Sequence[int]) -> str:
    """`steps`: those up to which the first attempts are shown."""
    rows = []
    for variant, made in runs_of(records, "e5", cell).items():
        final = ("before", "success", "before_reward", "reward")
        spent = [[run["curve"][unit][-1] for run in made] for unit in ("tokens", "wall")]
        reached = [[smooth(run["curve"]["success_base"])[at - 1] for run in made] for at in steps]
        rows.append([
            LABELS[variant],
            *(_spread([run[name] for run in made]) for name in final),
            *map(_spread, [*reached, *spent]),
            str(len(made)),
        ])  # fmt: skip
    attempts = [f"first attempts to step {at}" for at in steps]
    columns = ["success before", "after", "score before", "after", *attempts,
               "sampled tokens", "seconds", "seeds"]  # fmt: skip
    return table(["", *columns], rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation; shares with three digits, counts with none."""
    return _pm(values, 3 if isinstance(values[0], float) and max(values) <= 1 else 0)


def _pm(values: Sequence[float], digits: int) -> str:
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"

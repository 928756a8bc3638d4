"""From the results files to `docs/results.md` and its pictures, by the template `page.md`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.results import cells, wall_clock
from benchmarks.results.cells import BASES, CELLS, CUT_OFF, EASIEST, TOLD
from benchmarks.results.charts import grid
from benchmarks.results.experiments import (
    E0_TOKENS,
    ESTIMATORS,
    EXPERIMENTS,
    GRPO_FASTER,
    OFFLINE,
    OFFLINE_STEPS,
    R3L_FASTER,
    REPLAYED,
    STEPS,
    VARIANTS,
    gradients_setup_of,
    offline_setup_of,
)
from benchmarks.results.findings import (
    RHOS,
    WORTH,
    against,
    best_rate,
    both,
    cell_of,
    claim,
    claim_in_words,
    crossings,
    not_trained,
    numbers,
    offline_gaps,
    other_rates,
    policies,
    predictions,
    shown,
    summaries,
    table,
    without_retries,
    worlds,
)
from benchmarks.results.lines import LINES, read_lines
from benchmarks.results.statistics import (
    UNITS,
    WINDOW,
    Record,
    ceiling,
    cost,
    gained,
    ratio,
    smooth,
)

PICTURES = tuple(UNITS)
FINAL = ("success", "steps", "attempts")
ALONE_AT_FIRST = ("grpo", "r3l", "unranked")
"""Variants whose first attempts see nothing that is stored."""
LABELS = {name: variant.label for name, variant in VARIANTS.items()}


def write(records: Sequence[Record], lines: Path) -> None:
    """Write the page beside the folder `lines`, and the pictures into it."""
    lines.parent.joinpath("results.md").write_text(render(records, lines), encoding="utf-8")
    for unit in PICTURES if _drawn(records) else ():
        charts = [
            [
                (f"base {CELLS[cell].base:g}, ρ {rho:g}", _runs(records, "e1", cell))
                for cell in (cell_of(base, rho).name for base in BASES)
            ]
            for rho in RHOS
        ]
        grid(charts, LABELS, unit, lines / f"e1-{unit}.svg")


def _drawn(records: Sequence[Record]) -> bool:
    return any(record["experiment"] == "e1" for record in records)


def render(records: Sequence[Record], lines: Path) -> str:
    """The page for the runs that have ended."""
    predicted = json.loads((LINES / "prediction.json").read_text(encoding="utf-8"))
    warm = policies(read_lines(lines / "warm.jsonl", cells.setup_of))
    gradients = read_lines(lines / "e4.jsonl", gradients_setup_of)
    systems = read_lines(lines / "e5.jsonl", wall_clock.setup_of)
    offline = read_lines(lines / "e8.jsonl", offline_setup_of)
    found = numbers(records, gradients, systems)
    return (Path(__file__).parent / "page.md").read_text(encoding="utf-8").format(
        window=WINDOW,
        worth=" and ".join(f"{worth:g}" for worth in WORTH),
        told=TOLD,
        easiest_tokens=f"{E0_TOKENS:,}",
        map=_map(records, predicted, warm),
        pictures="\n\n".join(
            f"![success by {UNITS[unit]}](results/e1-{unit}.svg)"
            for unit in PICTURES
            if _drawn(records)
        ),
        **worlds(),
        n=found,
        predictions=predictions(records, predicted),
        crossings=crossings(records, predicted),
        claim=claim(records, warm),
        claim_in_words=claim_in_words(records, warm),
        other_rates=other_rates(records),
        without_retries=without_retries(found),
        not_trained=not_trained([*records, *systems]),
        offline_gaps=offline_gaps(offline, OFFLINE),
        warm=_warm(warm, records),
        others=_others(records, "e1", ("r3l_failures", "grpo_equal", "no_reflect",
                                       "grpo_lr_low", *GRPO_FASTER, *R3L_FASTER)),
        same_rate=_same_rate(records),
        tuned=_tuned(records),
        easiest=_final(_runs(records, "e0", EASIEST.name)),
        summaries=summaries(records, warm),
        levers=_others(records, "e2", _variants("e2")),
        controls=_others(records, "e3", _variants("e3")),
        replayed=_final(_runs(records, "e6", REPLAYED)),
        ranked=[_final(_runs(records, "e9", cell.name)) for cell in CUT_OFF],
        stopped=STEPS,
        offline_steps=OFFLINE_STEPS,
        offline=_offline(offline),
        gradients=_gradients(gradients),
        wall=_wall(systems),
        scienceworld=_scienceworld(systems, wall_clock.SCIENCEWORLD, (5, 10)),
        scienceworld_long=_scienceworld(systems, wall_clock.SCIENCEWORLD_LONG, (15, 30, 45)),
    )  # fmt: skip


def _variants(experiment: str) -> list[str]:
    """R³L with its defaults, then what the experiment varies."""
    varied = (variant for part in EXPERIMENTS[experiment] for variant in part.variants)
    return [name for name in dict.fromkeys(("r3l", *varied)) if name != "grpo"]


def _runs(records: Sequence[Record], experiment: str, cell: str) -> dict[str, list[Record]]:
    """The runs of a cell by variant."""
    mine = [r for r in records if r["experiment"] == experiment and r["cell"] == cell]
    return {v: [r for r in mine if r["variant"] == v] for v in VARIANTS if _any(mine, v)}


def _any(records: Sequence[Record], variant: str) -> bool:
    return any(record["variant"] == variant for record in records)


def _map(
    records: Sequence[Record],
    predicted: Sequence[dict[str, Any]],
    warm: Mapping[str, Record],
) -> str:
    rows = []
    for base, guess in zip(BASES, predicted, strict=True):
        for rho in RHOS:
            ours, theirs = both(records, base, rho)
            told = warm.get(cell_of(base, rho).name, {}).get("told", 0.0)
            mark = "" if told >= TOLD else " †"
            shared = {run["seed"] for run in ours} & {run["seed"] for run in theirs}
            for worth in WORTH:
                foreseen = guess[f"to_{worth}"]["ratio"]
                shown = [
                    str(foreseen["steps"]),
                    _ratio(ours, theirs, worth, "steps"),
                    str(foreseen[f"tokens_rho_{rho}"]),
                    _ratio(ours, theirs, worth, "tokens"),
                    _ratio(ours, theirs, worth, "cpu"),
                    str(len(shared)),
                ]
                rows.append([f"{base:g}{mark}", f"{rho:g}", f"{worth:g}", *shown])
    columns = ["ρ", "success", "steps, predicted", "steps", "tokens, predicted", "tokens",
               "CPU seconds", "seeds"]  # fmt: skip
    return table(["base success", *columns], rows)


def _ratio(over: Sequence[Record], under: Sequence[Record], worth: float, unit: str) -> str:
    if not over or not under:
        return "–"
    return shown(ratio(over, under, worth, unit))


def _warm(warm: dict[str, Any], records: Sequence[Record]) -> str:
    columns = ("success", "told", "parsed", "pivots", "guided", "restart", "reflection_cost")
    rows = []
    for name in (name for name in CELLS if name in warm):
        mine = (r for r in records if r["cell"] == name and r["variant"] in ALONE_AT_FIRST)
        first = [run["curve"]["success_base"][0] for run in mine]
        begun = f"{mean(first):.3f}" if first else "–"
        shown = [_number(warm[name].get(column)) for column in columns]
        rows.append([name, begun, *shown, str(warm[name]["policies"])])
    return table(["cell", "first attempts", *columns, "policies"], rows)


def _others(records: Sequence[Record], experiment: str, variants: Iterable[str]) -> str:
    rows = []
    variants = list(variants)
    for cell in CELLS:
        for variant in variants:
            ours, grpo = against(records, experiment, cell, variant)
            if ours:
                shown = [_ratio(ours, grpo, worth, unit) for worth in WORTH for unit in UNITS]
                rows.append([cell, LABELS[variant], *shown, str(len(ours))])
    columns = [f"{UNITS[unit]} to {worth:g}" for worth in WORTH for unit in UNITS]
    return table(["cell", "variant", *columns, "seeds"], rows)


def _same_rate(records: Sequence[Record]) -> str:
    """R³L over GRPO with the same learning rate."""
    rates = zip(("r3l", *R3L_FASTER), ("grpo", *GRPO_FASTER), strict=True)
    pairs = [(cell, *pair) for pair in rates for cell in CELLS]
    rows = []
    for cell, ours, theirs in sorted(pairs, key=lambda pair: list(CELLS).index(pair[0])):
        runs = _runs(records, "e1", cell)
        if ours in runs and theirs in runs and R3L_FASTER[0] in runs:
            costs = [_ratio(runs[ours], runs[theirs], at, unit) for at in WORTH for unit in UNITS]
            rows.append([cell, LABELS[ours], LABELS[theirs], *costs])
    columns = [f"{UNITS[unit]} to {worth:g}" for worth in WORTH for unit in UNITS]
    return table(["cell", "R³L", "GRPO", *columns], rows)


def _tuned(records: Sequence[Record]) -> str:
    """R³L over GRPO with its best learning rate, in cells where both have several."""
    rows = []
    for cell, worth in ((cell, worth) for cell in CELLS for worth in WORTH):
        runs = _runs(records, "e1", cell)
        ours, theirs = (best_rate(runs, algorithm, worth) for algorithm in ("r3l", "grpo"))
        if ours is None or theirs is None:
            continue
        for variant in ("r3l", ours):
            costs = [_ratio(runs[variant], runs[theirs], worth, unit) for unit in UNITS]
            rows.append([cell, f"{worth:g}", LABELS[variant], LABELS[theirs], *costs])
    return table(["cell", "success", "R³L", "GRPO", *UNITS.values()], rows)


def _final(runs: dict[str, list[Record]]) -> str:
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


def _gradients(lines: Sequence[dict[str, Any]]) -> str:
    rows = []
    for step in sorted({line["step"] for line in lines}):
        mine = [line for line in lines if line["step"] == step]
        known = _pm([ceiling(line["halves"]) for line in mine], 2)
        for name, (label, _) in ESTIMATORS.items():
            noise, cosine = ([line[name][what] for line in mine] for what in ("noise", "cosine"))
            rows.append([str(step), label, _pm(noise, 1), _pm(cosine, 2), known, str(len(mine))])
    return table(["after step", "estimator", "noise", "cosine", "ceiling", "seeds"], rows)


def _offline(lines: Sequence[dict[str, Any]]) -> str:
    rows = []
    for variant, (label, _) in OFFLINE.items():
        mine = [line for line in lines if line["variant"] == variant]
        if mine:
            before, after = ([line[when] for line in mine] for when in ("before", "after"))
            gain = gained(before, after)
            trust = [line["trust"] for line in mine]
            lost = [str(one["lost_at"]) if one["lost_at"] >= 0 else "–" for one in trust]
            shown = [
                f"{gain.value:+.3f}"
                + (f" ({gain.low:+.3f} to {gain.high:+.3f})" if len(mine) > 1 else ""),
                f"{mean(one['ess'] for one in trust):.2f}",
                f"{mean(one['kl'] for one in trust):.3f}",
            ]
            counted = [", ".join(lost), str(len(mine))]
            rows.append([label, _spread(before), _spread(after), *shown, *counted])
    columns = ["stopped", "after", "gain", "effective sample size", "KL, nats a token"]
    return table(["", *columns, "not trusted from step", "seeds"], rows)


def _wall(records: Sequence[Record]) -> str:
    rows = []
    for cell in CELLS:
        runs = _runs(records, "e5", cell)
        ours, theirs = runs.get("r3l", []), runs.get("grpo", [])
        if ours and theirs:
            shown = [
                _ratio(ours, theirs, worth, unit)
                for worth in WORTH
                for unit in ("steps", "tokens", "wall")
            ]
            rows.append([cell, *shown, f"{len(ours)}, {len(theirs)}"])
    columns = [f"{unit} to {worth:g}" for worth in WORTH for unit in ("steps", "tokens", "seconds")]
    return table(["cell", *columns, "seeds"], rows)


def _scienceworld(records: Sequence[Record], cell: str, steps: Sequence[int]) -> str:
    """`steps`: those up to which the first attempts are shown."""
    rows = []
    for variant, made in _runs(records, "e5", cell).items():
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

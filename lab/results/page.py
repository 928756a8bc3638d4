"""From the results files to `docs/results.md` and `docs/results/`, by the templates in `pages/`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.results import cells, guided, long_row, rates, tables, wall_clock
from lab.results.cells import BASES, CELLS, CUT_OFF, EASIEST, HINTED, LONG_ROW, TOLD
from lab.results.charts import grid, overview
from lab.results.experiments import (
    E0_TOKENS,
    GRPO_FASTER,
    OFFLINE,
    OFFLINE_STEPS,
    R3L_FASTER,
    REPLAYED,
    STEPS,
    gradients_setup_of,
    offline_setup_of,
)
from lab.results.findings import (
    RHOS,
    WORTH,
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
    ratios_to_half,
    summaries,
    told_less,
    without_retries,
    worlds,
)
from lab.results.lines import LINES, read_lines
from lab.results.statistics import UNITS, WINDOW, Record

PAGES = Path(__file__).parent / "pages"
FIRST = "overview"
"""The page that becomes `docs/results.md`; every other one is in `docs/results/`."""


def write(records: Sequence[Record], lines: Path) -> None:
    """Write the pages and the pictures; all but the first page go into the folder `lines`."""
    pages = render(records, lines)
    lines.mkdir(parents=True, exist_ok=True)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    if not _drawn(records):
        return
    warm = policies(read_lines(lines / "warm.jsonl", cells.setup_of))
    overview(ratios_to_half(records, warm), lines / "overview.svg")
    for unit in UNITS:
        charts = [
            [
                (f"base {CELLS[cell].base:g}, ρ {rho:g}", tables.runs_of(records, "e1", cell))
                for cell in (cell_of(base, rho).name for base in BASES)
            ]
            for rho in RHOS
        ]
        grid(charts, tables.LABELS, unit, lines / f"e1-{unit}.svg")


def _drawn(records: Sequence[Record]) -> bool:
    return any(record["experiment"] == "e1" for record in records)


def render(records: Sequence[Record], lines: Path) -> dict[Path, str]:
    """The text of every page by its path, for the runs that have ended."""
    values = _values(records, lines)
    return {
        lines.parent / "results.md"
        if template.stem == FIRST
        else lines / template.name: template.read_text(encoding="utf-8").format(**values)
        for template in sorted(PAGES.glob("*.md"))
    }


def _values(records: Sequence[Record], lines: Path) -> dict[str, Any]:
    """Every table and number that a template may name."""
    predicted = json.loads((LINES / "prediction.json").read_text(encoding="utf-8"))
    measured = read_lines(lines / "warm.jsonl", cells.setup_of)
    warm = policies(measured)
    gradients = read_lines(lines / "e4.jsonl", gradients_setup_of)
    systems = read_lines(lines / "e5.jsonl", wall_clock.setup_of)
    offline = read_lines(lines / "e8.jsonl", offline_setup_of)
    easiest = [line for line in gradients if "cell" not in line]
    found = numbers(records, easiest, systems)
    return dict(
        window=WINDOW,
        worth=" and ".join(f"{worth:g}" for worth in WORTH),
        told=TOLD,
        told_hard=told_less(warm, [wall_clock.HARD]),
        easiest_tokens=f"{E0_TOKENS:,}",
        short_map=tables.map_to_half(records, warm),
        map=tables.regime_map(records, predicted, warm),
        pictures="\n\n".join(
            f"![success by {UNITS[unit]}](e1-{unit}.svg)" for unit in UNITS if _drawn(records)
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
        warm=tables.warm_policies(warm, records),
        others=tables.over_grpo(records, "e1", ("r3l_failures", "grpo_equal", "no_reflect",
                                                "grpo_lr_low", *GRPO_FASTER, *R3L_FASTER)),
        same_rate=tables.same_rate(records),
        kept=rates.KEPT,
        tuned=rates.over_tuned_grpo(records),
        missing_rates=rates.missing_rates(records),
        easiest=tables.final(tables.runs_of(records, "e0", EASIEST.name)),
        summaries=summaries(records, warm),
        levers=tables.over_grpo(records, "e2", tables.variants_of("e2")),
        remarks=tables.over_grpo(
            [run for run in records if run["cell"] != LONG_ROW.name], "e10", ("r3l",)
        ),
        remark_policies=tables.warm_policies(warm, records, [cell.name for cell in HINTED]),
        long_row_state=long_row.state(records),
        long_row=long_row.ablations(records),
        long_row_policies=tables.warm_policies(warm, records, [LONG_ROW.name]),
        auxiliary=tables.without_auxiliary(records),
        per_token=tables.per_token(records, "e11", "grpo_no_kl"),
        over_no_kl=tables.over_variant(records, "e11", "grpo_no_kl"),
        compute=tables.over_grpo(
            [run for run in records if run["experiment"] == "e11"], "e11", tables.variants_of("e11")
        ),
        guided=guided.costs(records),
        compute_policies=tables.warm_policies(
            policies(measured, "e11"), [run for run in records if run["experiment"] == "e11"]
        ),
        told_less_alone=told_less(policies(measured, "e11"), cells.CELLS),
        told_less_cut_off=told_less(warm, [cell.name for cell in CUT_OFF]),
        controls=tables.over_grpo(records, "e3", tables.variants_of("e3")),
        replayed=tables.final(tables.runs_of(records, "e6", REPLAYED)),
        ranked=[tables.final(tables.runs_of(records, "e9", cell.name)) for cell in CUT_OFF],
        stopped=STEPS,
        offline_steps=OFFLINE_STEPS,
        offline=tables.offline(offline),
        gradients=tables.gradients(easiest),
        gradients_long=tables.gradients(
            [line for line in gradients if line.get("cell") == LONG_ROW.name]
        ),
        wall=tables.wall_clock(systems),
        scienceworld=tables.scienceworld(systems, wall_clock.SCIENCEWORLD, (5, 10)),
        scienceworld_long=tables.scienceworld(
            systems, wall_clock.SCIENCEWORLD_LONG, (15, 30, 45)
        ),
    )  # fmt: skip

"""From the lines of `lab.results` to its pages below `docs/`, by the templates in `pages/`, which
have the same folders. `lab.report` writes the pages that use the lines of several programs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.results import cells, guided, long_row, rates, tables, wall_clock
from lab.results.cells import CUT_OFF, EASIEST, HINTED, LONG_ROW, TOLD
from lab.results.costs import Costs, plain
from lab.results.experiments import (
    E0_TOKENS,
    EXPERIMENTS,
    GRPO_FASTER,
    OFFLINE,
    OFFLINE_STEPS,
    R3L_FASTER,
    REPLAYED,
    STEPS,
    SUPERVISED_TOKENS,
    gradients_setup_of,
    offline_setup_of,
)
from lab.results.findings import (
    WORTH,
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
    told_less,
    without_retries,
    worlds,
)
from lab.results.lines import DOCS, LINES, read_lines
from lab.results.statistics import WINDOW, Record

PAGES = Path(__file__).parent / "pages"


def write(records: Sequence[Record], lines: Path) -> None:
    """Write the pages: into docs/, or beside lines that are elsewhere."""
    for path, text in render(records, lines).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def render(records: Sequence[Record], lines: Path) -> dict[Path, str]:
    """The text of every page by its path, for the runs that have ended."""
    return filled(PAGES, values(records, lines), docs_of(lines))


def docs_of(lines: Path) -> Path:
    """The folder that the pages of a folder of lines go into."""
    return DOCS if lines == LINES else lines / "docs"


def filled(templates: Path, values: Mapping[str, Any], docs: Path) -> dict[Path, str]:
    """The text of every template of a folder, by the path of its page."""
    return {
        docs / template.relative_to(templates): template.read_text("utf-8").format(**values)
        for template in sorted(templates.rglob("*.md"))
    }


def values(records: Sequence[Record], lines: Path) -> dict[str, Any]:
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
        **worlds(),
        n=found,
        c=Costs(records, shown),
        v=Costs(records, plain),
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
        **_advised(records),
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


def _advised(records: Sequence[Record]) -> dict[str, str]:
    """The tables of the variants that use advice in another way."""
    cells = EXPERIMENTS["e13"][0].cells
    final = [f"{name}\n\n{tables.final(tables.runs_of(records, 'e13', name))}" for name in cells]
    return {
        "supervised_tokens": f"{SUPERVISED_TOKENS:,}",
        "advised": tables.over_variant(records, "e13", "no_reflect", without="supervised"),
        "advised_final": "\n\n".join(final),
    }

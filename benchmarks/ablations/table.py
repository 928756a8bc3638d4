"""From finished runs to `docs/results.md`, by the template `page.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

Record = Mapping[str, Any]
FINAL = ("success", "reward", "steps", "attempts", "tokens", "seconds")
FIFTHS = ("0–20 %", "20–40 %", "40–60 %", "60–80 %", "80–100 %")


def render(records: Sequence[Record], labels: Mapping[str, str], **facts: Any) -> str:
    """The page for the runs that have ended. `labels`: run name to label, in the table's order;
    `facts`: the template's other values."""
    runs = {name: [r for r in records if r["name"] == name] for name in labels}
    final = [
        [label, *(_spread([run[c] for run in runs[name]]) for c in FINAL), str(len(runs[name]))]
        for name, label in labels.items()
    ]
    course = [[label, *_fifths(runs[name], "success_base")] for name, label in labels.items()]
    retries = [
        [label, *_fifths(runs["r3l"], metric)]
        for metric, label in (("trigger_rate", "trigger"), ("improvement_rate", "improvement"))
    ]
    return (Path(__file__).parent / "page.md").read_text(encoding="utf-8").format(
        final=_table([*FINAL, "seeds"], final),
        course=_table(FIFTHS, course),
        retries=_table(FIFTHS, retries),
        error=(0.25 / facts["tasks"]) ** 0.5,
        **facts,
    )  # fmt: skip


def _fifths(runs: Sequence[Record], metric: str) -> list[str]:
    """Of a metric's means in each fifth of each run's tokens: mean ± std over runs."""
    cells = []
    for fifth in range(len(FIFTHS)):
        means = []
        for run in runs:
            inside = (p for p in run["curve"] if 5 * (p["tokens"] - 1) // run["tokens"] == fifth)
            values = [point[metric] for point in inside if point[metric] is not None]
            means += [mean(values)] if values else []
        cells.append(_spread(means))
    return cells


def _spread(values: Sequence[float]) -> str:
    """Mean ± std; shares of 1 (floats) with three digits, counts with none."""
    if not values:
        return "–"
    digits = 3 if isinstance(values[0], float) else 0
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [["", *columns], ["---"] * (len(columns) + 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

"""Draws docs/cost.svg, the figure of the README: `python -m lab.readme_figure`.

lines of the regime map ─► R³L's cost over GRPO's where a reflection costs an attempt ─► one chart
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lab.dry_run import DRY_RUN
from lab.results.cells import BASES
from lab.results.charts import new_figure, save
from lab.results.experiments import setup_of
from lab.results.findings import both, cell_of, select
from lab.results.lines import LINES, read_lines
from lab.results.statistics import Ratio, Record, ratio

OUT = Path(__file__).parents[1] / "docs" / "cost.svg"
RHO, SUCCESS = 1.0, 0.5
Curve = list[tuple[float, Ratio]]
"""Success before training, and the ratio of costs there."""
STYLES: dict[str, dict[str, Any]] = {
    "optimizer steps": {"color": "#b84a00", "marker": "o"},
    "sampled tokens": {"color": "#0b63a5", "marker": "s"},
    "CPU seconds, GRPO without its\nreference model (1 or 2 seeds)": {
        "color": "#5a6470", "marker": "D", "linestyle": "--", "markerfacecolor": "white",
    },
}  # fmt: skip


@click.command()
@DRY_RUN
def main(dry_run: bool) -> None:
    """Draw the figure of the README from the lines of the regime map."""
    found = curves([
        line for name in ("e1", "e11") for line in read_lines(LINES / f"{name}.jsonl", setup_of)
    ])  # fmt: skip
    if dry_run:
        click.echo(f"{OUT} would have {sum(map(len, found))} points")
        return
    draw(found, OUT)


def curves(records: Sequence[Record]) -> list[Curve]:
    """One curve for each of STYLES, from high to low success before training. Leaves out what has
    no runs."""
    steps, tokens, cpu = list[Curve]([[], [], []])
    for base in BASES:
        ours, grpo = both(records, base, RHO)
        equal, plain = (
            select(records, "e11", cell_of(base, RHO).name, name) for name in ("r3l", "grpo_no_kl")
        )
        if ours and grpo:
            steps.append((base, ratio(ours, grpo, SUCCESS, "steps")))
            tokens.append((base, ratio(ours, grpo, SUCCESS, "tokens")))
        if equal and plain:
            cpu.append((base, ratio(equal, plain, SUCCESS, "cpu")))
    return [steps, tokens, cpu]


def draw(found: Sequence[Curve], out: Path) -> None:
    """Write the figure: a line for each curve, a bar for each interval, a triangle for a bound."""
    figure = new_figure(7.6, 3.5)
    axis = figure.subplots()
    axis.axhspan(0.04, 1, color="#eaf3ec", zorder=0)
    axis.axhline(1, color="#1d2126", linewidth=1)
    for (label, style), curve in zip(STYLES.items(), found, strict=True):
        bases, values = [base for base, _ in curve], [known.value for _, known in curve]
        axis.plot(bases, values, label=label, linewidth=1.5, markersize=6, **style)
        for base, known in curve:
            if known.kind == "=" and known.interval and "linestyle" not in style:
                axis.plot([base, base], known.interval, color=style["color"], linewidth=1)
            if known.kind == "<":
                axis.plot(base, known.value * 0.86, "v", color=style["color"], markersize=5)
    axis.plot(
        [],
        [],
        "v",
        color="#5a6470",
        markersize=5,
        label="at most: GRPO did not always\nget to a success of 0.5",
    )
    axis.set(xscale="log", yscale="log", xlim=(5e-5, 0.25), ylim=(0.07, 4))
    axis.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
    axis.set_xticks(list(BASES), [f"{base:g}" for base in BASES])
    axis.minorticks_off()
    axis.tick_params(labelsize=9)
    axis.text(6.5e-3, 1.12, "GRPO's cost", fontsize=9)
    axis.text(2.4e-4, 0.82, "lower is cheaper", fontsize=9, color="#2f6b45")
    axis.set_xlabel("success before training", fontsize=9)
    axis.set_ylabel("R³L's cost / GRPO's cost", fontsize=9)
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, out)


if __name__ == "__main__":
    main()

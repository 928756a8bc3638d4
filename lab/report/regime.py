"""Pictures of where R³L pays: the overview, the regime map, remarks and curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lab.report.smollm2 import differences
from lab.results.cells import BASES, CELLS
from lab.results.charts import COLOURS, DASHES, GREY, SURE, mark, new_figure, ratio_scale, save
from lab.results.findings import WORTH, cell_of, ratios_to_half, select
from lab.results.statistics import UNITS, Ratio, Record, pairs, ratio, smooth, spent

RHO_COLOURS = {2.4: "#0072b2", 1.0: "#d55e00", 0.3: "#009e73"}
RHO_DASHES = {2.4: ":", 1.0: "-", 0.3: "--"}
LABELS = {"r3l": "R³L", "grpo": "GRPO", "no_reflect": "R³L without reflection"}
POINTS = 30


def overview(records: Sequence[Record], systems: Sequence[Record],
             real_model: Sequence[dict[str, Any]], out: Path) -> None:  # fmt: skip
    """Draws the answer of all pages: R³L over its partners in the toy worlds at ρ 1, and its
    differences where no gain is shown."""
    figure = new_figure(9.4, 3.7)
    toy, real = figure.subplots(1, 2, width_ratios=(1.1, 1))
    shown = (
        ("optimizer steps, over GRPO", "steps", "grpo", "#d55e00", "o", "-"),
        ("sampled tokens, over GRPO", "tokens", "grpo", "#0072b2", "s", "--"),
        ("CPU seconds, over R³L without reflection", "cpu", "no_reflect", "#009e73", "^", ":"),
    )
    for label, unit, partner, colour, shape, dash in shown:
        found = [_over(records, base, partner, unit) for base in BASES]
        known = [(base, one) for base, one in zip(BASES, found, strict=True) if one]
        toy.plot([base for base, _ in known], [one.value for _, one in known], dash, color=colour,
                 linewidth=1.3)  # fmt: skip
        for base, one in known:
            _point(toy, base, one, colour, shape)
        toy.plot([], [], dash + shape, color=colour, label=label, markersize=5)
    toy.set_xscale("log")
    toy.set_xlabel("success before training", fontsize=9)
    toy.set_ylabel("cost of R³L / cost of the other", fontsize=9)
    ratio_scale(toy, "y", 0.07, 9)
    toy.text(0.00025, 0.085, "below 1: R³L cheaper", fontsize=7.5, color=GREY)
    toy.set_title("toy worlds (1 M parameters), to a success of 0.5", fontsize=9)
    toy.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(0, 0.99))
    _no_gain(real, systems, real_model)
    save(figure, out)


def _over(records: Sequence[Record], base: float, partner: str, unit: str) -> Ratio | None:
    name = cell_of(base, 1.0).name
    mine, theirs = (select(records, "e1", name, variant) for variant in ("r3l", partner))
    return ratio(mine, theirs, WORTH[0], unit) if pairs(mine, theirs) else None


def _point(axis: Axes, base: float, found: Ratio, colour: str, shape: str) -> None:
    sure = found.policies >= SURE and found.kind == "="
    if sure and found.interval:
        axis.plot([base, base], found.interval, color=colour, linewidth=1.3)
    axis.plot(base, found.value, shape if found.kind == "=" else "v", color=colour, markersize=5.5,
              markerfacecolor=colour if sure else "white")  # fmt: skip


def _no_gain(axis: Axes, systems: Sequence[Record], real_model: Sequence[dict[str, Any]]) -> None:
    """R³L less its partner, a dot a pair, where no gain is shown."""
    rows = [
        (f"SmolLM2, sums,\n{dose:,} reflections shown", [each for *_, each in found])
        for dose, found in differences(real_model).items()
    ]
    for cell, steps in (("scienceworld", 15), ("scienceworld-long", 45)):
        arms = [select(systems, "e5", cell, variant) for variant in ("r3l", "grpo")]
        gaps = [one["reward"] - other["reward"] for one, other in pairs(*arms)]
        rows.append((f"ScienceWorld,\n{steps} steps", gaps))
    for height, (_, gaps) in enumerate(rows):
        axis.plot(gaps, [height] * len(gaps), "o", color="#d55e00", markersize=5, alpha=0.5)
        axis.plot(fmean(gaps), height, "|", color="#d55e00", markersize=16, markeredgewidth=2)
    axis.axvline(0, color=GREY, linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlim(-0.12, 0.12)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel("success or score of R³L less the other's (right: R³L better)", fontsize=8)
    axis.set_title("no gain shown: a dot a pair, a bar their mean", fontsize=9)
    axis.grid(alpha=0.25)


def regime_map(records: Sequence[Record], warm: Mapping[str, Record], out: Path) -> None:
    """Draws one chart for each unit: the ratio of R³L to GRPO against base success, a line for
    each ρ. A triangle is an upper bound; a grey mark is a cell that does not count."""
    ratios = ratios_to_half(records, warm)
    figure = new_figure(8.4, 3.4)
    axes = figure.subplots(1, len(ratios), squeeze=False, sharey=True)[0]
    for axis, (unit, by_rho) in zip(axes, ratios.items(), strict=True):
        for rho, points in by_rho.items():
            colour = RHO_COLOURS[rho]
            bases = [base for base, _, _ in points]
            values = [found.value for _, found, _ in points]
            axis.plot(bases, values, RHO_DASHES[rho], color=colour, label=f"ρ {rho:g}")
            for base, found, counts in points:
                _point(axis, base, found, colour if counts else "#a0aec0", "o")
        axis.set_xscale("log")
        ratio_scale(axis, "y", 0.08, 3)
        axis.set_title(UNITS[unit], fontsize=9)
        axis.set_xlabel("success before training", fontsize=9)
    axes[0].set_ylabel("cost of R³L / cost of GRPO", fontsize=9)
    axes[0].text(0.00012, 0.93, "R³L cheaper", fontsize=8, color=GREY, va="top")
    axes[-1].legend(fontsize=8, frameon=False, loc="lower right")
    save(figure, out)


def remarks(records: Sequence[Record], out: Path) -> None:
    """Draws R³L over GRPO by what the remark after a mistake says."""
    figure = new_figure(8.4, 2.9)
    said = (("names the answer", ""), ("says where", "-where"), ("no remark", "-none"))
    axes = figure.subplots(1, len(UNITS), sharey=True)
    names: list[tuple[float, str]] = []
    for axis, (unit, title) in zip(axes, UNITS.items(), strict=True):
        height, names = 0.0, []
        for base in (0.13, 0.005, 0.002):
            for (name, end), colour in zip(said, ("#009e73", "#d55e00", "#0072b2"), strict=True):
                cell = f"base-{base:g}-rho-1{end}"
                experiment = "e10" if end else "e1"
                ours, grpo = (select(records, experiment, cell, v) for v in ("r3l", "grpo"))
                mark(axis, ratio(ours, grpo, WORTH[0], unit), height, colour)
                names.append((height, f"{base:g}, {name}"))
                height += 1
            height += 0.5
        ratio_scale(axis, "x", 0.3, 5)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("R³L / GRPO", fontsize=8)
    axes[0].set_yticks([place for place, _ in names], [name for _, name in names], fontsize=8)
    axes[0].invert_yaxis()
    save(figure, out)


def curves(records: Sequence[Record], out: Path) -> None:
    """Draws success by steps and by tokens in the five worlds at ρ 1: means over the seeds, and a
    band from the lowest to the highest seed."""
    figure = new_figure(11, 4.2)
    axes = figure.subplots(2, len(BASES), sharey=True)
    for row, unit in zip(axes, ("steps", "tokens"), strict=True):
        for axis, base in zip(row, BASES, strict=True):
            name = cell_of(base, 1.0).name
            for variant, label in LABELS.items():
                if runs := select(records, "e1", name, variant):
                    _curve(axis, runs, variant, label, unit)
            axis.set_ylim(0, 1)
            axis.set_xlim(left=0)
            axis.tick_params(labelsize=7)
            axis.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4))
            axis.xaxis.get_offset_text().set_fontsize(7)
            axis.grid(alpha=0.25)
            axis.set_xlabel(UNITS[unit], fontsize=8)
            if unit == "steps":
                axis.set_title(f"success before {CELLS[name].base:g}", fontsize=9)
        row[0].set_ylabel("first attempts' success", fontsize=8)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(LABELS), fontsize=8)
    save(figure, out)


def _curve(axis: Axes, runs: Sequence[Record], variant: str, label: str, unit: str) -> None:
    courses = [(spent(run, unit), smooth(run["curve"]["success_base"])) for run in runs]
    places = np.linspace(0, max(amounts[-1] for amounts, _ in courses), POINTS)
    found = np.array([np.interp(places, amounts, shares) for amounts, shares in courses])
    colour = COLOURS[variant]
    axis.plot(places, found.mean(0), DASHES[variant], color=colour, label=label, linewidth=1.4)
    axis.fill_between(places, found.min(0), found.max(0), color=colour, alpha=0.15, linewidth=0)

"""Pictures of the curves: a grid of small charts, drawn by matplotlib as SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lab.results.statistics import UNITS, Ratio, Record, band, smooth, spent

COLOURS = {
    "r3l": "#c05621",
    "grpo": "#2b6cb0",
    "no_reflect": "#718096",
    "r3l_failures": "#d69e2e",
    "grpo_equal": "#2c7a7b",
}
POINTS = 60

RHO_COLOURS = ("#c05621", "#2b6cb0", "#2c7a7b")

Runs = Mapping[str, Sequence[Record]]
"""Runs by variant."""


def new_figure(width: float, height: float) -> Figure:
    """Makes a figure of this size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, out: Path) -> None:
    """Write a figure as SVG: equal bytes for equal data, and text as text, not as outlines."""
    matplotlib.rcParams["svg.hashsalt"] = "r3l"
    matplotlib.rcParams["svg.fonttype"] = "none"
    figure.savefig(out, format="svg", metadata={"Date": None})


def grid(charts: Sequence[Sequence[tuple[str, Runs]]], labels: Mapping[str, str], unit: str,
         out: Path) -> None:  # fmt: skip
    """Write a grid of charts, each a title and its runs: success of first attempts (mean over
    seeds; the band is its 95 % bootstrap interval, if there are two seeds) by what was spent."""
    rows, columns = len(charts), len(charts[0])
    figure = new_figure(2.6 * columns + 1, 2.0 * rows + 0.9)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for across, line in zip(axes, charts, strict=True):
        for axis, (title, runs) in zip(across, line, strict=True):
            for variant in runs:
                _curve(axis, runs[variant], COLOURS.get(variant, "#4a5568"), labels[variant], unit)
            axis.set_title(title, fontsize=9)
            axis.set_ylim(0, 1)
            axis.set_xlim(left=0)
            axis.tick_params(labelsize=7)
            axis.grid(alpha=0.3)
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize=8)
    figure.supxlabel(UNITS[unit], fontsize=9)
    save(figure, out)


def overview(ratios: Mapping[str, Mapping[float, Sequence[tuple[float, Ratio, bool]]]],
             out: Path) -> None:  # fmt: skip
    """Write one chart for each unit: the ratio of R³L to GRPO against base success, a line for
    each ρ. A triangle is an upper bound; an open mark is a cell that does not count."""
    figure = new_figure(8.4, 3.6)
    axes = figure.subplots(1, len(ratios), squeeze=False, sharey=True)[0]
    for axis, (unit, by_rho) in zip(axes, ratios.items(), strict=True):
        for colour, (rho, points) in zip(RHO_COLOURS, by_rho.items(), strict=True):
            bases = [base for base, _, _ in points]
            values = [ratio.value for _, ratio, _ in points]
            axis.plot(bases, values, color=colour, label=f"ρ {rho:g}", linewidth=1.2)
            for base, ratio, counts in points:
                if ratio.kind == "=" and ratio.interval:
                    axis.plot([base, base], ratio.interval, color=colour, linewidth=1)
                axis.plot(base, ratio.value, "v" if ratio.kind == "<" else "o", color=colour,
                          markerfacecolor=colour if counts else "white", markersize=6)  # fmt: skip
        axis.axhline(1, color="#4a5568", linewidth=0.8, linestyle="--")
        if any(by_rho.values()):
            axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
        axis.minorticks_off()
        axis.set_title(UNITS[unit], fontsize=10)
        axis.set_xlabel("base success", fontsize=9)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("cost of R³L / cost of GRPO", fontsize=9)
    axes[-1].legend(fontsize=8, frameon=False)
    save(figure, out)


def _curve(axis: object, runs: Sequence[Record], colour: str, label: str, unit: str) -> None:
    if not runs:
        return
    courses = [(spent(run, unit), smooth(run["curve"]["success_base"])) for run in runs]
    places = np.linspace(0, max(amounts[-1] for amounts, _ in courses), POINTS)
    lines = np.array([np.interp(places, amounts, shares) for amounts, shares in courses])
    axis.plot(places, lines.mean(0), color=colour, label=label, linewidth=1.4)  # type: ignore[attr-defined]
    if len(lines) > 1:
        axis.fill_between(places, *band(lines), color=colour, alpha=0.15, linewidth=0)  # type: ignore[attr-defined]

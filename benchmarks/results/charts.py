"""Pictures of the curves: a grid of small charts, drawn by matplotlib as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.results.statistics import UNITS, Record, band, smooth, spent

COLOURS = {
    "r3l": "#c05621",
    "grpo": "#2b6cb0",
    "no_reflect": "#718096",
    "r3l_failures": "#d69e2e",
    "grpo_equal": "#2c7a7b",
}
POINTS = 60

Runs = Mapping[str, Sequence[Record]]
"""Runs by variant."""


def grid(charts: Sequence[Sequence[tuple[str, Runs]]], labels: Mapping[str, str], unit: str,
         out: Path) -> None:  # fmt: skip
    """Write a grid of charts, each a title and its runs: success of first attempts (mean over
    seeds; the band is its 95 % bootstrap interval, if there are two seeds) by what was spent."""
    rows, columns = len(charts), len(charts[0])
    matplotlib.rcParams["svg.hashsalt"] = "r3l"  # equal bytes for equal data
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text, not as outlines
    figure = Figure(figsize=(2.6 * columns + 1, 2.0 * rows + 0.9), layout="constrained")
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
    figure.savefig(out, format="svg", metadata={"Date": None})


def _curve(axis: object, runs: Sequence[Record], colour: str, label: str, unit: str) -> None:
    if not runs:
        return
    courses = [(spent(run, unit), smooth(run["curve"]["success_base"])) for run in runs]
    places = np.linspace(0, max(amounts[-1] for amounts, _ in courses), POINTS)
    lines = np.array([np.interp(places, amounts, shares) for amounts, shares in courses])
    axis.plot(places, lines.mean(0), color=colour, label=label, linewidth=1.4)  # type: ignore[attr-defined]
    if len(lines) > 1:
        axis.fill_between(places, *band(lines), color=colour, alpha=0.15, linewidth=0)  # type: ignore[attr-defined]

"""The picture of docs/results/real-model.md: held-out success by step, a line a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from benchmarks.results.charts import COLOURS, new_figure, save

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""Runs by what the legend calls them; `variant` chooses the colour."""


def draw(charts: Mapping[str, Runs], out: Path) -> None:
    """Write the charts, by title, next to each other."""
    figure = new_figure(9, 2.9)
    axes = figure.subplots(1, len(charts), sharey=True, squeeze=False)[0]
    for axis, (title, runs) in zip(axes, charts.items(), strict=True):
        for name, made in runs.items():
            for number, run in enumerate(made):
                steps, successes = zip(*run["evaluations"], strict=True)
                colour = COLOURS[run["variant"]]
                label = None if number else name
                axis.plot(steps, successes, color=colour, label=label, linewidth=1.3)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("optimizer steps", fontsize=8)
        axis.set_ylim(0, 1)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlim(left=0)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    axes[0].set_ylabel("held-out success", fontsize=8)
    save(figure, out)

"""The picture of docs/results/real-model.md: held-out success by what was spent, a line a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.ticker import MaxNLocator

from lab.results.charts import COLOURS, new_figure, save
from lab.results.statistics import UNITS, spent

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""Runs by what the legend calls them; `variant` chooses the colour."""


class Panel(NamedTuple):
    """A chart of `runs` by a unit of `lab.results.statistics`."""

    title: str
    runs: Runs
    unit: str = "steps"


def draw(panels: Sequence[Panel], out: Path) -> None:
    """Write the panels next to each other."""
    figure = new_figure(2.6 * len(panels), 2.9)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, runs, unit) in zip(axes, panels, strict=True):
        for name, made in runs.items():
            for number, run in enumerate(made):
                steps, successes = zip(*run["evaluations"], strict=True)
                amounts = [0, *spent(run, unit)]
                colour = COLOURS[run["variant"]]
                label = None if number else name
                places = [amounts[step] for step in steps]
                axis.plot(places, successes, color=colour, label=label, linewidth=1.3)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(UNITS[unit], fontsize=8)
        axis.set_ylim(0, 1)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axis.set_xlim(left=0)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    axes[0].set_ylabel("held-out success", fontsize=8)
    save(figure, out)

"""The picture of useful, useless and harmful advice, with the gate and without."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes

from lab.results.charts import new_figure, save
from lab.results.findings import WORTH, select
from lab.results.guided import EXPERIMENT, WITHOUT
from lab.results.statistics import Record, cost, smooth
from lab.results.taught import OF_KNOWN_WORTH

CELLS = ("base-0.13-rho-1", "base-0.005-rho-1")
ARMS = (
    ("", "retries in every group", "#d55e00", "o"),
    ("_gated", "measured gate", "#0072b2", "s"),
    ("_only", "every group, no auxiliary loss", "#e69f00", "^"),
    ("_gated_only", "gate, no auxiliary loss", "#009e73", "D"),
)
GUIDANCE_COLOURS = {"useful": "#009e73", "useless": "#e69f00", "harmful": "#d55e00"}


def draw(records: Sequence[Record], out: Path) -> None:
    """Draws tokens to a success by guidance and arm, and how often the gate keeps retries."""
    figure = new_figure(9.6, 5.2)
    axes = figure.subplots(2, 2)
    for column, cell in enumerate(CELLS):
        _tokens(axes[0][column], records, cell)
        _shares(axes[1][column], records, cell)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, fontsize=8)
    save(figure, out)


def _tokens(axis: Axes, records: Sequence[Record], cell: str) -> None:
    plain = select(records, EXPERIMENT, cell, WITHOUT)
    without = fmean(cost(run, WORTH[0], "tokens").amount for run in plain) / 1000
    axis.axvline(without, color="#4a5568", linestyle="--", linewidth=1, label="no retries")
    for place, guidance in enumerate(OF_KNOWN_WORTH):
        for shift, (end, label, colour, shape) in enumerate(ARMS):
            for run in select(records, EXPERIMENT, cell, f"{guidance}{end}"):
                found = cost(run, WORTH[0], "tokens")
                height = place + 0.2 * (shift - 1.5)
                axis.plot(found.amount / 1000, height, shape if found.reached else ">",
                          color=colour, markersize=6)  # fmt: skip
            if place == 0:
                axis.plot([], [], shape, color=colour, label=label)
    axis.set_yticks(range(3), OF_KNOWN_WORTH, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel("sampled tokens to a success of 0.5, thousands", fontsize=8)
    axis.set_title(f"success before training {cell.split('-')[1]}", fontsize=9)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(alpha=0.25)


def _shares(axis: Axes, records: Sequence[Record], cell: str) -> None:
    for guidance, colour in GUIDANCE_COLOURS.items():
        for number, run in enumerate(select(records, EXPERIMENT, cell, f"{guidance}_gated")):
            shares = [1 - share for share in smooth(run["curve"]["gated"])]
            dash = {"useful": "-", "useless": "--", "harmful": ":"}[guidance]
            axis.plot(range(1, len(shares) + 1), shares, dash, color=colour, linewidth=1.5,
                      label=None if number else guidance)  # fmt: skip
    axis.set_ylim(0, 1.05)
    axis.set_xlabel("optimizer step", fontsize=8)
    axis.set_ylabel("groups with retries", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=8, frameon=False)
    axis.grid(alpha=0.25)

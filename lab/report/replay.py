"""The picture of what replay is worth."""

from collections.abc import Sequence
from pathlib import Path

from lab.report.parts import scatter
from lab.results.charts import new_figure, save
from lab.results.experiments import REPLAYED, VARIANTS
from lab.results.findings import select
from lab.results.statistics import Record

SHOWN = {
    "stored_grpo": ("s", "#0072b2"),
    "replay_half": ("D", "#0072b2"),
    "replay_most": ("v", "#0072b2"),
    "curriculum": ("P", "#0072b2"),
    "stored_r3l": ("o", "#d55e00"),
    "r3l_recall": ("<", "#d55e00"),
    "r3l_replay_most": ("v", "#d55e00"),
    "spear": ("^", "#009e73"),
    "arpo": ("X", "#cc79a7"),
    "r3_no_context": ("*", "#e69f00"),
    "prefix": ("h", "#56b4e9"),
    "partial": (">", "#7f7f7f"),
    "flat_replaced": ("p", "#000000"),
}
"""R³ with reflection in context is left out: it takes 96 steps."""


def worth(records: Sequence[Record], out: Path) -> None:
    """Draws tokens against steps to a success of 0.5, by recipe."""
    figure = new_figure(7.8, 4.0)
    axis = figure.subplots()
    for name, (shape, colour) in SHOWN.items():
        runs = select(records, "e6", REPLAYED, name)
        scatter(axis, runs, VARIANTS[name].label, shape, colour)
    axis.set_xlabel("optimizer steps to 0.5", fontsize=9)
    axis.set_ylabel("sampled tokens to 0.5, thousands", fontsize=9)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    figure.legend(fontsize=8, loc="outside right center", frameon=False)
    save(figure, out)

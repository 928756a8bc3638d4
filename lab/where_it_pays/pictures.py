"""The two pictures of the page: a forest plot of all rows, and the contrast ratio against them."""

from collections.abc import Sequence
from pathlib import Path

from lab.results.charts import COLOURS, SHAPES, mark, new_figure, ratio_scale, save
from lab.results.statistics import UNITS
from lab.where_it_pays.rows import PARTNERS, Row

LIMITS = (0.08, 6.0)
UNIT_MARKS = {"=": "o", "<": "v", ">": "^"}


def forest(rows: Sequence[Row], out: Path) -> None:
    """Draws the costs of R³L over each partner: a panel for each unit, a line for each world. A
    triangle is a bound, an open mark is of fewer than FEWEST warm policies, each of which is a
    stroke, or each seed of one policy."""
    figure = new_figure(10.4, 1.2 + 0.3 * len(rows))
    panels = figure.subplots(1, len(UNITS), squeeze=False, sharey=True)[0]
    for axis, (unit, title) in zip(panels, UNITS.items(), strict=True):
        for place, row in enumerate(rows):
            for number, partner in enumerate(PARTNERS):
                found = row.over(partner)
                if found is not None and unit in found.ratios:
                    height = place + 0.25 * (number - 1)
                    mark(axis, found.ratios[unit], height, COLOURS[partner], SHAPES[partner])
        ratio_scale(axis, "x", *LIMITS)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("R³L / the other (left: R³L cheaper)", fontsize=8)
    panels[0].set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=7)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    for partner, name in PARTNERS.items():
        colour = COLOURS[partner]
        panels[-1].plot([], [], SHAPES[partner], color=colour, markerfacecolor="white", label=name)
    handles, names = panels[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(PARTNERS), fontsize=8)
    save(figure, out)


def contrast(rows: Sequence[Row], out: Path) -> None:
    """Draws steps and tokens over each partner against the contrast ratio."""
    figure = new_figure(8.4, 3.6)
    for axis, unit in zip(figure.subplots(1, 2, sharey=True), ("steps", "tokens"), strict=True):
        for row in rows:
            for partner in PARTNERS:
                found = row.over(partner)
                if row.contrast is None or found is None or found.ratios[unit].kind == "?":
                    continue
                kind, colour = found.ratios[unit].kind, COLOURS[partner]
                shape = SHAPES[partner] if kind == "=" else UNIT_MARKS[kind]
                face = colour if row.model == "SmolLM2" else "white"
                axis.plot(row.contrast, found.ratios[unit].value, shape, color=colour,
                          markerfacecolor=face, markersize=5)  # fmt: skip
        axis.set_xscale("log")
        ratio_scale(axis, "y", *LIMITS)
        axis.set_title(UNITS[unit], fontsize=9)
        axis.set_xlabel("contrast ratio", fontsize=8)
    axis = figure.axes[0]
    axis.set_ylabel("R³L / the other", fontsize=8)
    for partner, name in PARTNERS.items():
        axis.plot([], [], SHAPES[partner], color=COLOURS[partner], label=name)
    axis.legend(fontsize=7, frameon=False)
    save(figure, out)


def _label(row: Row) -> str:
    mark = "" if row.counts else " †"
    return f"{row.model}, {row.world}, {row.base:.2g}{mark}"

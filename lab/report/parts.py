"""Pictures of what each part of R³L does."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes

from lab.results.cells import EASIEST, LONG_ROW
from lab.results.charts import GREY, mark, new_figure, ratio_scale, save
from lab.results.experiments import ESTIMATORS, VARIANTS
from lab.results.findings import WORTH, select
from lab.results.long_row import first_attempts
from lab.results.statistics import UNITS, Record, alike, cost, pairs, ratio

ALONE = {
    "no_reflect": ("e1", "without reflection"),
    "restart": ("e3", "restart without guidance"),
    "pivot_earlier": ("e3", "pivot 2 steps earlier"),
    "pivot_later": ("e3", "pivot 2 steps later"),
    "teacher": ("e3", "the environment's reflections"),
    "r3l_failures": ("e1", "reflects on failures alone"),
    "sft_none": ("e2", "without auxiliary loss"),
    "sft_tenth": ("e2", "auxiliary loss × 0.1"),
    "max_advantage": ("e2", "advantage of a success 1"),
    "r3l_lag_1": ("e2", "a step stale"),
    "r3l_lag_4": ("e2", "four steps stale"),
    "r3l_clipped_lag_4": ("e2", "the same, clipped ratios"),
}
"""Variants that differ from R³L in one part, with their experiment."""
FOREST_CELLS = {"base-0.13-rho-1": "#0072b2", "base-0.002-rho-1": "#d55e00"}
RATES = {"": 1, "_lr_high": 2, "_lr_4": 4, "_lr_8": 8}
ALGORITHMS = ("r3l", "no_reflect", "grpo", "raft", "opmd", "reflect_grpo", "dapo", "gspo", "rloo",
              "r3l_kl")  # fmt: skip
MARKS = "os^DvP*X<>"
SHADES = ("#d55e00", "#009e73", "#0072b2", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f",
          "#6a3d9a", "#a65628")  # fmt: skip
LEFT_OUT = {
    "no_credit": "without the pivot mask",
    "no_amplify": "without amplification",
    "sft_none": "without the auxiliary loss",
    "r3l_std": "R³L, divided by σ",
    "grpo": "GRPO",
}


def forest(records: Sequence[Record], out: Path) -> None:
    """Draws the cost of each variant over R³L in two cells."""
    figure = new_figure(8.8, 4.6)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, unit in zip(axes, ("steps", "tokens"), strict=True):
        for place, (variant, (experiment, _)) in enumerate(ALONE.items()):
            for shift, (cell, colour) in enumerate(FOREST_CELLS.items()):
                runs = select(records, experiment, cell, variant)
                whole = alike(select(records, "e1", cell, "r3l"), runs)
                if pairs(runs, whole):
                    found = ratio(runs, whole, WORTH[0], unit)
                    mark(axis, found, place + 0.26 * shift - 0.13, colour, "os"[shift])
        ratio_scale(axis, "x", 0.7 if unit == "steps" else 0.3, 6.5)
        axis.set_xlabel("variant / R³L (right: R³L cheaper)", fontsize=8)
        axis.set_title(UNITS[unit], fontsize=9)
    names = [label for _, label in ALONE.values()]
    axes[0].set_yticks(range(len(names)), names, fontsize=8)
    axes[0].invert_yaxis()
    for (cell, colour), shape in zip(FOREST_CELLS.items(), "os", strict=True):
        label = f"success before training {cell.split('-')[1]}"
        axes[1].plot([], [], shape, color=colour, markerfacecolor="white", label=label)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    save(figure, out)


def rates(records: Sequence[Record], out: Path) -> None:
    """Draws the steps to a success by the learning rate: a mark a seed, open if it fell back."""
    figure = new_figure(7.4, 3.1)
    for axis, cell in zip(figure.subplots(1, 2, sharex=True), FOREST_CELLS, strict=True):
        for name, colour, shape, shift in (("r3l", "#d55e00", "o", 0.96),
                                           ("grpo", "#0072b2", "s", 1.04)):  # fmt: skip
            means = []
            for end, factor in RATES.items():
                runs = select(records, "e1", cell, f"{name}{end}")
                steps = [cost(run, WORTH[0], "steps").amount for run in runs]
                means.append(fmean(steps))
                for run, count in zip(runs, steps, strict=True):
                    face = colour if run["success"] >= 0.9 else "white"
                    axis.plot(factor * shift, count, shape, color=colour, markerfacecolor=face,
                              markersize=4.5, alpha=0.8)  # fmt: skip
            label = {"r3l": "R³L", "grpo": "GRPO"}[name]
            axis.plot(list(RATES.values()), means, "-" if name == "r3l" else "--", color=colour,
                      label=label, linewidth=1.2)  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(RATES.values()), [f"× {factor}" for factor in RATES.values()])
        axis.set_ylim(bottom=0)
        axis.set_title(f"success before training {cell.split('-')[1]}", fontsize=9)
        axis.set_xlabel("learning rate, over the common one", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8, frameon=False)
    figure.axes[0].set_ylabel("optimizer steps to 0.5", fontsize=8)
    save(figure, out)


def easiest(records: Sequence[Record], out: Path) -> None:
    """Draws tokens against steps to a success of 0.5 in the easiest world, by algorithm."""
    figure = new_figure(6.4, 3.4)
    axis = figure.subplots()
    for name, shape, colour in zip(ALGORITHMS, MARKS, SHADES, strict=True):
        runs = select(records, "e0", EASIEST.name, name)
        scatter(axis, runs, VARIANTS[name].label, shape, colour)
    axis.set_xlabel("optimizer steps to 0.5", fontsize=9)
    axis.set_ylabel("sampled tokens to 0.5, thousands", fontsize=9)
    axis.grid(alpha=0.25)
    figure.legend(fontsize=8, loc="outside right center", frameon=False)
    save(figure, out)


def scatter(axis: Axes, runs: Sequence[Record], label: str, shape: str, colour: str) -> None:
    """Draws a cross for each run that got to 0.5, and a mark at their mean: tokens by steps."""
    found = [(cost(run, WORTH[0], "steps"), cost(run, WORTH[0], "tokens")) for run in runs]
    there = [(steps.amount, tokens.amount / 1000) for steps, tokens in found if steps.reached]
    if not there:
        return
    few = f" ({len(there)} of {len(runs)} seeds)" if len(there) < len(runs) else ""
    steps, tokens = (list(values) for values in zip(*there, strict=True))
    axis.plot(steps, tokens, "x", color=colour, markersize=4, alpha=0.6)
    axis.plot(fmean(steps), fmean(tokens), shape, color=colour, markersize=7, label=label + few)


def long_row(records: Sequence[Record], gradients: Sequence[dict[str, Any]], out: Path) -> None:
    """Draws R³L less each variant in the long row, and the noise of the gradient."""
    figure = new_figure(9, 3.1)
    gaps, noise = figure.subplots(1, 2, width_ratios=(1, 1.1))
    ours = select(records, "e10", LONG_ROW.name, "r3l")
    for place, variant in enumerate(LEFT_OUT):
        twins = pairs(ours, select(records, "e10", LONG_ROW.name, variant))
        found = [first_attempts(one) - first_attempts(other) for one, other in twins]
        gaps.plot(found, [place] * len(found), "o", color="#d55e00", alpha=0.5, markersize=5)
        gaps.plot(fmean(found), place, "|", color="#d55e00", markersize=15, markeredgewidth=2)
        if variant in ("no_credit", "no_amplify"):
            gaps.plot(0.05, place, "D", color="#0072b2", markersize=5)
    gaps.plot([], [], "D", color="#0072b2", label="predicted")
    gaps.axvline(0, color=GREY, linewidth=0.8, linestyle="--")
    names = list(LEFT_OUT.values())
    gaps.set_yticks(range(len(names)), names, fontsize=8)
    gaps.invert_yaxis()
    gaps.set_xlabel("first attempts' success, R³L less the variant", fontsize=8)
    gaps.set_title("a long row, after 15 steps", fontsize=9)
    gaps.legend(fontsize=7, frameon=False)
    gaps.grid(alpha=0.25)
    gaps.set_xticks([-0.15, -0.1, -0.05, 0, 0.05])
    gaps.tick_params(axis="x", labelsize=8)
    _noise(noise, gradients)
    save(figure, out)


def _noise(axis: Axes, lines: Sequence[dict[str, Any]]) -> None:
    where = (
        ("easiest, step 0", None, 0),
        ("easiest, step 8", None, 8),
        ("long row", LONG_ROW.name, 0),
    )
    shades = ("#d55e00", "#0072b2", "#e69f00", "#56b4e9")
    for shift, (name, (label, _)) in enumerate(ESTIMATORS.items()):
        for place, (_, cell, step) in enumerate(where):
            mine = [x for x in lines if (x.get("cell"), x["step"]) == (cell, step)]
            found = [line[name]["noise"] for line in mine]
            height = place + 0.18 * (shift - 1.5)
            axis.plot(found, [height] * len(found), "x", color=shades[shift], markersize=4)
            axis.plot(fmean(found), height, "os^D"[shift], color=shades[shift], markersize=5,
                      label=label if place == 0 else None)  # fmt: skip
    axis.set_xscale("log")
    axis.set_xticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
    axis.minorticks_off()
    axis.set_yticks(range(3), [name for name, _, _ in where], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("noise of the gradient (smaller: fewer groups needed)", fontsize=8)
    axis.set_title("noise, three seeds", fontsize=9)
    axis.tick_params(axis="x", labelsize=8)
    axis.legend(fontsize=7, frameon=False)
    axis.grid(alpha=0.25)

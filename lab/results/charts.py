"""What the pictures share: colours, scales, and how a ratio is drawn; matplotlib writes SVG."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from lab.results.statistics import Ratio

SURE = 3
"""Of fewer warm policies no interval is drawn."""

COLOURS = {
    "r3l": "#d55e00",
    "grpo": "#0072b2",
    "no_reflect": "#009e73",
    "grpo_no_kl": "#56b4e9",
    "r3l_failures": "#e69f00",
    "grpo_equal": "#cc79a7",
}
"""Okabe and Ito's colours, which stay apart for colour-blind readers."""
SHAPES = {"r3l": "o", "grpo": "s", "no_reflect": "^", "grpo_no_kl": "D"}
DASHES = {"r3l": "-", "grpo": "--", "no_reflect": ":", "grpo_no_kl": "-."}
GREY = "#4a5568"
TICKS = (0.1, 0.2, 0.5, 1, 2, 5)


def new_figure(width: float, height: float) -> Figure:
    """Makes a figure of this size in inches, on white: it is read on a dark page, too."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: Figure, out: Path) -> None:
    """Write a figure as SVG: equal bytes for equal data, and text as text, not as outlines."""
    matplotlib.rcParams["svg.hashsalt"] = "r3l"
    matplotlib.rcParams["svg.fonttype"] = "none"
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format="svg", metadata={"Date": None})


def ratio_scale(axis: Axes, name: str, low: float, high: float) -> None:
    """Makes the x or y axis one of ratios, with a line at 1."""
    getattr(axis, f"set_{name}scale")("log")
    getattr(axis, f"set_{name}lim")(low, high)
    its = axis.xaxis if name == "x" else axis.yaxis
    ticks = [tick for tick in TICKS if low <= tick <= high]
    its.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    its.set_minor_locator(NullLocator())
    line = axis.axvline if name == "x" else axis.axhline
    line(1, color=GREY, linewidth=0.8, linestyle="--")
    axis.grid(alpha=0.25)
    axis.tick_params(labelsize=8)


def mark(axis: Axes, found: Ratio, height: float, colour: str, shape: str = "o") -> None:
    """Draws a ratio: a filled mark with its interval over three warm policies or more, else an
    open one with a small dot for each policy or seed; a bound is a triangle."""
    if found.kind == "?":
        return
    bound = found.kind != "="
    sure = found.policies >= SURE and found.interval is not None and not bound
    if sure and found.interval:
        axis.plot(found.interval, [height, height], color=colour, linewidth=1.3)
    elif not bound and len(found.values) > 1:
        axis.plot(found.values, [height] * len(found.values), "|", color=colour, markersize=6,
                  alpha=0.7)  # fmt: skip
    axis.plot(found.value, height, found.kind if bound else shape, color=colour, markersize=5.5,
              markerfacecolor=colour if sure else "white")  # fmt: skip

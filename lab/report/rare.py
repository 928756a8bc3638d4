"""SmolLM2 where it rarely succeeds: held-out success by steps, tokens and CPU time."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lab.report.smollm2 import LABELS, Line
from lab.results.charts import COLOURS, DASHES, SHAPES, new_figure, save
from lab.results.findings import table
from lab.results.statistics import UNITS, cost, spent

WORLD = "what"
SHOWN = (10, 20, 30, 60)
"""Steps after which the table has the held-out success."""
WORTH = 0.5
SCALES = {"steps": 1, "tokens": 1000, "cpu": 60}
AXES = {"steps": "optimizer steps", "tokens": "thousand sampled tokens", "cpu": "CPU minutes"}


def runs_of(lines: Sequence[Line]) -> list[Line]:
    """The runs in WORLD by seed, with the arms in the order of LABELS."""
    named = {"kind": "run", "world": WORLD}
    found = [run for run in lines if run.items() >= named.items() and run["variant"] in LABELS]
    return sorted(found, key=lambda run: (run["seed"], list(LABELS).index(run["variant"])))


def courses(lines: Sequence[Line], out: Path) -> None:
    """Draws the held-out success of every run by what it had spent until then."""
    runs = runs_of(lines)
    figure = new_figure(9, 3.1)
    axes = figure.subplots(1, len(UNITS), sharey=True)
    for axis, unit in zip(axes, UNITS, strict=True):
        for run in runs:
            _course(axis, run, unit)
        axis.set_ylim(0, 1.03)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axis.set_xlabel(AXES[unit], fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("held-out success", fontsize=8)
    named = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, fontsize=8)
    save(figure, out)


def _course(axis: Axes, run: Line, unit: str) -> None:
    variant, amounts = run["variant"], [0.0, *spent(run, unit)]
    steps, successes = zip(*run["evaluations"], strict=True)
    axis.plot([amounts[step] / SCALES[unit] for step in steps], successes,
              DASHES[variant] + SHAPES[variant], color=COLOURS[variant],
              label=LABELS[variant], linewidth=1.3, markersize=3.5)  # fmt: skip


def rows(lines: Sequence[Line]) -> str:
    """A table of the runs: held-out success after some of the steps, what the whole run took, and
    what it took until the first attempts of training reached a success of WORTH."""
    made = []
    for run in runs_of(lines):
        successes = dict(run["evaluations"])
        costs = [cost(run, WORTH, unit) for unit in UNITS]
        made.append([
            str(run["seed"]),
            LABELS[run["variant"]],
            *(f"{successes[step]:.3f}" for step in (0, *SHOWN)),
            *(f"{spent(run, unit)[-1]:,.0f}" for unit in ("tokens", "cpu")),
            *(f"{one.amount:,.0f}" if one.reached else "–" for one in costs),
        ])  # fmt: skip
    heads = ["before", *(f"step {step}" for step in SHOWN), "tokens in all", "CPU s in all"]
    units = (f"{unit} to {WORTH:g}" for unit in ("steps", "tokens", "CPU s"))
    return table(["seed", "arm", *heads, *units], made)

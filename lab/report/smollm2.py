"""Pictures of SmolLM2: pairs of runs, what guidance brings, and what it learns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lab.real_model.page import KINDS, after_start, machine, on_gpu
from lab.results.charts import COLOURS, DASHES, GREY, SHAPES, new_figure, save

Line = Mapping[str, Any]
DOSE_COLOURS = {0: "#0072b2", 200: "#e69f00", 1000: "#d55e00"}
DOSE_SHAPES = {0: "s", 200: "o", 1000: "^"}
PROBES = (("#56b4e9", "s"), ("#e69f00", "o"), ("#009e73", "D"), ("#0072b2", "v"), ("#d55e00", "^"))
LABELS = {"r3l": "R³L", "no_reflect": "R³L without reflection", "grpo": "GRPO"}


def differences(lines: Sequence[Line]) -> dict[int, list[tuple[Line, float]]]:
    """By dose R³L's runs on sums, each with its mean held-out success after the start less that of
    R³L without reflection from the same policy, over the evaluations that both have."""
    runs = [line for line in lines if line["kind"] == "train"]
    found: dict[int, list[tuple[Line, float]]] = {}
    for one in (run for run in runs if run["variant"] == "r3l"):
        twin = {"variant": "no_reflect"} | {key: one[key] for key in ("machine", "dose", "seed")}
        for other in (run for run in runs if run.items() >= twin.items()):
            shared = min(len(one["evaluations"]), len(other["evaluations"]))
            mine, its = (
                after_start({**run, "evaluations": run["evaluations"][:shared]})
                for run in (one, other)
            )
            found.setdefault(one["dose"], []).append((one, mine - its))
    return dict(sorted(found.items()))


def pairs(lines: Sequence[Line], out: Path) -> None:
    """Draws the difference of each pair by dose, and against the gain of advice in training."""
    figure = new_figure(8.4, 3.2)
    doses, gains = figure.subplots(1, 2, sharey=True)
    for place, (dose, found) in enumerate(differences(lines).items()):
        colour, shape = DOSE_COLOURS[dose], DOSE_SHAPES[dose]
        gaps = [gap for _, gap in found]
        doses.plot([place] * len(gaps), gaps, shape, color=colour, alpha=0.7, markersize=6)
        doses.plot(place, fmean(gaps), "_", color=colour, markersize=26, markeredgewidth=2)
        gain = [run["means"].get("group/guidance_gain", 0.0) for run, _ in found]
        label = f"{dose:,} reflections shown"
        gains.plot(gain, gaps, shape, color=colour, label=label, markersize=6)
    doses.set_xticks(range(3), [f"{dose:,}" for dose in differences(lines)])
    doses.set_xlim(-0.5, 2.5)
    doses.set_xlabel("demonstrated reflections (bar: mean of the pairs)", fontsize=8)
    doses.set_ylabel("held-out success of R³L\nless that without reflection", fontsize=8)
    gains.set_xlabel("what its own advice brought a retry in training", fontsize=8)
    gains.legend(fontsize=8, frameon=False)
    for axis in (doses, gains):
        axis.axhline(0, color=GREY, linewidth=0.8, linestyle="--")
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25)
    save(figure, out)


def guidance(lines: Sequence[Line], out: Path) -> None:
    """Draws what each kind of guidance brings a retry, by warm policy."""
    figure = new_figure(8.4, 3.6)
    axis = figure.subplots()
    probes = [line for line in lines if line["kind"] == "probe"]
    probes.sort(key=lambda line: (line["dose"], on_gpu(dict(line)), line["machine"]))
    for shift, (line, (colour, shape)) in enumerate(zip(probes, PROBES, strict=True)):
        label = f"{line['dose']:,} shown, {machine(dict(line))}"
        for place, kind in enumerate(KINDS):
            found = line["gains"].get(kind)
            if found and found["pairs"]:
                height = place + 0.15 * (shift - 2)
                half = 1.96 * found["se"]
                ends = [found["gain"] - half, found["gain"] + half]
                axis.plot(ends, [height, height], color=colour, linewidth=1)
                axis.plot(found["gain"], height, shape, color=colour, markersize=5)
        axis.plot([], [], "-" + shape, color=colour, label=label, markersize=5)
    axis.axvline(0, color=GREY, linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(KINDS)), list(KINDS.values()), fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("success of a retry less that of another attempt at the task", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(alpha=0.25)
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    save(figure, out)


def learning(lines: Sequence[Line], out: Path) -> None:
    """Draws held-out success by steps: the workshop on a CPU and a GPU, the calculator agent."""
    workshop = [line for line in lines if line["kind"] == "workshop"]
    panels = {
        "workshop, a CPU (1 seed)": [line for line in workshop if not on_gpu(dict(line))],
        "workshop, a GPU (2 seeds)": [line for line in workshop if on_gpu(dict(line))],
        "calculator agent, a GPU (3 seeds)": [x for x in lines if x["kind"] == "calculator"],
    }
    figure = new_figure(9, 3.1)
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (title, runs) in zip(axes, panels.items(), strict=True):
        _courses(axis, runs)
        axis.set_title(title, fontsize=9)
    axes[0].set_ylabel("held-out success", fontsize=8)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8)
    save(figure, out)


def _courses(axis: Axes, runs: Sequence[Line]) -> None:
    for variant, label in LABELS.items():
        for number, run in enumerate(run for run in runs if run["variant"] == variant):
            steps, successes = zip(*run["evaluations"], strict=True)
            axis.plot(steps, successes, DASHES[variant] + SHAPES[variant], color=COLOURS[variant],
                      label=None if number else label, linewidth=1.3, markersize=3.5)  # fmt: skip
    axis.set_ylim(0, 1.03)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.set_xlabel("optimizer steps", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)

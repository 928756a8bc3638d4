"""The picture of what an optimizer step of the learner costs on one GPU."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.results.charts import new_figure, save

WAYS = {"tree": "#0072b2", "rows": "#e69f00", "baseline": "#7f7f7f"}
SAID = {
    "tree": "shared beginnings once (r3l)",
    "rows": "padded rows",
    "baseline": "rows, logits at every position",
}


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of the benchmark of a GPU."""
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]


def steps(lines: Sequence[dict[str, Any]], out: Path) -> None:
    """Draws the seconds of a step by model, engine and way, with those of each step."""
    ways = [line for line in lines if line.get("measure") == "ways"]
    figure = new_figure(8.2, 3.8)
    axis = figure.subplots()
    names = []
    for place, line in enumerate(ways):
        axis.barh(place, line["step_s"], color=WAYS[line["way"]], height=0.7)
        axis.plot(line["steps_s"], [place] * len(line["steps_s"]), "k|", markersize=6)
        said = f"{line['step_s']:.2f}"
        axis.text(max(line["steps_s"]) + 0.08, place, said, fontsize=7, va="center")
        card = line["card"].removeprefix("NVIDIA ").split()[0]
        names.append(f"{line['job'].replace('zero', 'ZeRO').replace('7b', '7.6b')}, {card}")
    for way, colour in WAYS.items():
        axis.barh(0, 0, color=colour, label=SAID[way])
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("seconds a step of 65,536 tokens (bar: median; strokes: each step)", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.legend(fontsize=8, frameon=False)
    axis.grid(axis="x", alpha=0.25)
    save(figure, out)

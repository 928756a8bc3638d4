"""Draws docs/demo.svg from a run of the demo, beside one with `algorithm=grpo`:
`python -m benchmarks.demo_plot runs/NAME --beside runs/OTHER`.

progress.jsonl ─► share of successes and retries by optimizer step ─► one SVG picture
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import click

OUT = Path(__file__).parent.parent / "docs" / "demo.svg"
WIDTH, HEIGHT = 760, 330
LEFT, TOP, RIGHT, BOTTOM = 52, 20, 250, 46  # margins; the legend is in the right one
LINES = {
    "group/success_base": ("#2b6cb0", "base attempts that succeed"),
    "group/success_retry": ("#c05621", "retries that succeed"),
    "group/trigger_rate": ("#718096", "base attempts that are retried"),
}
EVAL = ("#22543d", "evaluation, held-out tasks")
BESIDE = ("#9b2c2c", "evaluation with algorithm=grpo")
WINDOW = 5  # steps in a moving average
Points = list[tuple[float, float]]


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--beside", type=click.Path(path_type=Path), help="the same run with algorithm=grpo")
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True)
def main(run: Path, beside: Path | None, out: Path) -> None:
    """Draw the progress of a run."""
    out.write_text(picture(_progress(run), _progress(beside) if beside else ()), encoding="utf-8")


def _progress(run: Path) -> list[dict[str, Any]]:
    text = (run / "progress.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def picture(lines: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]] = ()) -> str:
    """The SVG picture of a run's progress lines, with the evaluations of a second run."""
    steps = [line for line in lines if line["kind"] == "step"]
    last = max((line["step"] for line in lines), default=0) or 1
    parts = [*_axes(last)]
    for place, (name, (colour, label)) in enumerate(LINES.items()):
        known = [(line["step"], line[name]) for line in steps if name in line]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in _placed(_smooth(known), last))
        parts.append(
            f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts += _legend(place, colour, label)
    for place, (run, (colour, label)) in enumerate(((lines, EVAL), (beside, BESIDE)), len(LINES)):
        if run:
            parts += [*_evaluations(run, last, colour), *_legend(place, colour, label)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _evaluations(run: Sequence[dict[str, Any]], last: int, colour: str) -> list[str]:
    """A dot and the share for each evaluation."""
    known = [(line["step"], line["success"]) for line in run if line["kind"] == "eval"]
    parts = []
    for (x, y), (_, share) in zip(_placed(known, last), known, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>')
        parts.append(_text(x, y - 9, f"{share:.2f}", "middle", colour))
    return parts


def _axes(last: int) -> list[str]:
    """Grid lines and labels: shares from 0 to 1, steps from 0 to the last."""
    parts = []
    for tenth in range(0, 11, 2):
        (left, y), (right, _) = _placed([(0, tenth / 10), (last, tenth / 10)], last)
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#e2e8f0"/>')
        parts.append(_text(left - 8, y + 4, f"{tenth / 10:.1f}", "end"))
    parts_of = next((n for n in (4, 5, 3) if last % n == 0), 4)
    for part in range(parts_of + 1):
        ((x, y),) = _placed([(last * part / parts_of, 0)], last)
        parts.append(_text(x, y + 18, f"{last * part / parts_of:.0f}", "middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*parts, _text(middle, HEIGHT - 10, "optimizer step", "middle")]


def _placed(points: Points, last: int) -> Points:
    """(step, share) as places in the picture."""
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return [(LEFT + width * step / last, TOP + height * (1 - share)) for step, share in points]


def _smooth(points: Points) -> Points:
    """The mean of each point and the WINDOW − 1 before it."""
    recent = [points[max(0, at + 1 - WINDOW) : at + 1] for at in range(len(points))]
    return [(some[-1][0], sum(share for _, share in some) / len(some)) for some in recent]


def _legend(place: int, colour: str, label: str) -> list[str]:
    x, y = WIDTH - RIGHT + 24, TOP + 20 + 24 * place
    return [
        f'<rect x="{x}" y="{y - 9}" width="14" height="10" fill="{colour}"/>',
        _text(x + 22, y, label),
    ]


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#2d3748") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(words)}</text>"
    )


if __name__ == "__main__":
    main()

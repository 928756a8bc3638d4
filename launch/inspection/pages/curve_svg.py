"""Draws curves with their intervals as SVG.

A measured interval is drawn as it is. A value of every step is drawn thin, and over it the mean of
several steps with the 95 % interval of that mean.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import NamedTuple

from launch.inspection.pages.markup import Html, element, joined

WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 8, 24  # margins
POINTS = 300
"""The most points of a line. A longer line is thinned evenly."""
COLOURS = 4
Z_95 = 1.96
LARGEST = 1e100
"""Larger values are left out, like those that are not finite."""
SHORT = 12
"""With fewer steps, no mean over steps is drawn."""


class Point(NamedTuple):
    """A value at a step, and its 95 % interval if one is known."""

    step: float
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A named line. `raw`: values that are drawn thin below it, such as the value of every step."""

    name: str
    points: Sequence[Point]
    raw: Sequence[Point] = ()


@dataclass(frozen=True)
class Chart:
    """A chart of at most COLOURS lines. `share`: whether its values are from 0 to 1."""

    title: str
    lines: Sequence[Line]
    share: bool = False
    note: str = field(default="")


def line_of_steps(name: str, points: Sequence[Point]) -> Line:
    """Makes a line of every step's values: the mean of `window` steps with its 95 % interval, as
    if the steps were independent. With few steps, the line has only the values."""
    finite = [point for point in points if _drawable(point.value)]
    if len(finite) < SHORT:
        return Line(name, finite)
    size = window(len(finite))
    means = []
    for end in range(size, len(finite) + 1):
        values = [point.value for point in finite[end - size : end]]
        mean, error = fmean(values), Z_95 * stdev(values) / math.sqrt(size)
        means.append(Point(finite[end - 1].step, mean, mean - error, mean + error))
    return Line(name, thin(means), thin(finite))


def window(steps: int) -> int:
    """Returns over how many steps a mean is drawn."""
    return max(5, steps // 12)


def thin(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """Returns at most `most` points, evenly spaced, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def draw(chart: Chart) -> Html:
    """Returns a chart as a figure; "" if it has no value."""
    lines = [_finite(line) for line in chart.lines]
    lines = [line for line in lines if line.points][:COLOURS]
    if not lines:
        return Html("")
    area = _area(chart, lines)
    said = ", ".join(f"{line.name}: {number(line.points[-1].value)} at the end" for line in lines)
    picture = element(
        "svg", element("title", f"{chart.title}. {said}"), _axes(area),
        *(_line(line, index, area) for index, line in enumerate(lines)),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
    )  # fmt: skip
    last = [f"{line.name} {number(line.points[-1].value)}" for line in lines]
    keys = [element("span", f"━ {words} ", class_=f"t{i}") for i, words in enumerate(last)]
    caption = element("figcaption", *keys, chart.note)
    return element("figure", element("h3", chart.title), picture, caption)


class Area(NamedTuple):
    """The steps and values that a chart shows."""

    first: float
    last: float
    low: float
    high: float
    spacing: float  # of the values' grid

    def x(self, step: float) -> float:
        share = (step - self.first) / (self.last - self.first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def number(value: float) -> str:
    """Writes a number short: 0.25, 1,234,000, 3e-06."""
    if not value or 1e-3 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e8 else f"{value:.2g}"


def _drawable(value: float) -> bool:
    return math.isfinite(value) and abs(value) < LARGEST


def _finite(line: Line) -> Line:
    points, raw = (
        [p for p in some if _drawable(p.step) and _drawable(p.value)]
        for some in (line.points, line.raw)
    )
    return Line(line.name, points, raw)


def _ends(point: Point) -> tuple[float, float] | None:
    """Returns a point's interval; None if it has none that can be drawn."""
    if point.low is None or point.high is None:
        return None
    known = _drawable(point.low) and _drawable(point.high)
    return (point.low, point.high) if known else None


def _area(chart: Chart, lines: Sequence[Line]) -> Area:
    points = [point for line in lines for point in (*line.points, *line.raw)]
    steps = [point.step for point in points]
    values = [point.value for point in points]
    values += [end for point in points for end in _ends(point) or ()]
    low, high = (0.0, 1.0) if chart.share else (min(values), max(values))
    if high - low < 1e-9 * max(abs(high), abs(low), 1e-30):
        low, high = low - max(abs(low), 1e-3) / 2, high + max(abs(high), 1e-3) / 2
    spacing = _nice((high - low) / 4)
    low, high = math.floor(low / spacing) * spacing, math.ceil(high / spacing) * spacing
    first, last = min(steps), max(steps)
    return Area(first, last if last > first else first + 1, low, high, spacing)


def _nice(step: float) -> float:
    """Returns a round number near `step`: 1, 2, 2.5 or 5 times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(step))
    return next((n * scale for n in (1, 2, 2.5, 5) if n * scale >= step * 0.999), 10 * scale)


def _axes(area: Area) -> Html:
    parts: list[Html] = []
    count = round((area.high - area.low) / area.spacing)
    for index in range(count + 1):
        value = area.low + index * area.spacing
        value = 0.0 if abs(value) < area.spacing * 1e-6 else value
        y = area.y(value)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid-line"))
        parts.append(_label(number(value), LEFT - 5, y + 4, "end"))
    for step, anchor in ((area.first, "start"), (area.last, "end")):
        name = f"step {step:,.0f}" if anchor == "start" else f"{step:,.0f}"
        parts.append(_label(name, area.x(step), HEIGHT - 7, anchor))
    return joined(*parts)


def _label(words: str, x: float, y: float, anchor: str) -> Html:
    return element("text", words, x=x, y=y, text_anchor=anchor)


def _line(line: Line, index: int, area: Area) -> Html:
    parts: list[Html] = []
    between = [(p.step, ends) for p in line.points if (ends := _ends(p)) is not None]
    if len(between) > 1:
        corners = [(step, high) for step, (_, high) in between]
        corners += [(step, low) for step, (low, _) in reversed(between)]
        shape = " ".join(f"{area.x(step)},{area.y(value)}" for step, value in corners)
        parts.append(element("polygon", points=shape, class_=f"band f{index}"))
    elif between:
        (step, (low, high)) = between[0]
        x, top, bottom = area.x(step), area.y(high), area.y(low)
        parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_=f"s{index}"))
    if line.raw:
        parts.append(_polyline(line.raw, area, f"raw s{index}"))
    if len(line.points) > 1:
        parts.append(_polyline(line.points, area, f"s{index}"))
    if len(line.points) <= 40 and not line.raw:
        parts += [
            element("circle", cx=area.x(p.step), cy=area.y(p.value), r=2.2, class_=f"f{index}")
            for p in line.points
        ]
    return joined(*parts)


def _polyline(points: Sequence[Point], area: Area, kind: str) -> Html:
    shape = " ".join(f"{area.x(point.step)},{area.y(point.value)}" for point in points)
    return element("polyline", points=shape, class_=kind)


def measured(metrics: Mapping[str, float], tag: str, step: int) -> Point | None:
    """Returns the point of an evaluation's metric, with its interval; None if it has none."""
    if tag not in metrics:
        return None
    return Point(step, metrics[tag], metrics.get(f"{tag}_low"), metrics.get(f"{tag}_high"))

"""Curves as SVG."""

import math

import pytest

from launch.inspection.pages.curve_svg import (
    POINTS,
    Chart,
    Line,
    Point,
    draw,
    line_of_steps,
    measured,
    number,
    thin,
    window,
)
from launch.inspection.pages.markup import page
from tests.launch.inspection.pages.html import read


def drawn(*values, share=False):
    points = [Point(n, value) for n, value in enumerate(values)]
    return draw(Chart("c", [Line("l", points)], share=share))


def test_a_mean_of_steps_has_the_interval_of_that_mean():
    line = line_of_steps("l", [Point(n, n % 2) for n in range(60)])
    assert (window(60), len(line.points), len(line.raw)) == (5, 56, 60)
    point = line.points[0]
    deviation = math.sqrt(5 * (0.4 * 0.6) / 4)
    assert point.step == 4 and point.value == 0.4
    assert point.high - point.value == pytest.approx(1.96 * deviation / math.sqrt(5))


def test_a_few_steps_are_drawn_as_they_are():
    line = line_of_steps("l", [Point(1, 0.5), Point(2, math.nan), Point(3, 0.25)])
    assert [p.value for p in line.points] == [0.5, 0.25] and not line.raw
    assert drawn(0.5, 0.25).count("<circle") == 2 and "polygon" not in drawn(0.5, 0.25)


def test_a_measured_interval_is_a_band_and_of_one_value_a_line():
    points = [Point(0, 0.5, 0.4, 0.6), Point(9, 0.7, 0.6, 0.8)]
    assert draw(Chart("c", [Line("l", points)], share=True)).count("<polygon") == 1
    alone = draw(Chart("c", [Line("l", points[:1])], share=True))
    assert "polygon" not in alone and alone.count('class="s0"') == 1
    assert measured({"success": 0.5, "success_low": 0.4, "success_high": 0.6}, "success", 0) == (
        *(0, 0.5, 0.4, 0.6),
    )
    assert measured({}, "success", 0) is None


def test_nothing_is_drawn_of_nothing():
    assert draw(Chart("c", [])) == drawn() == drawn(math.nan, math.inf, -1e300) == ""


@pytest.mark.parametrize(
    "values",
    [(0.0,), (5.0, 5.0), (1e-300, 2e-300), (1e90, -1e90), (0.0, 1e-12), (-3.0, 1234567.0),
     (1e15, 1e15 + 1), (5e-324,), (0.0, 5e99)],
)  # fmt: skip
def test_any_finite_values_stay_inside_the_picture(values):
    for share in (False, True):
        shape = read(page("t", drawn(*values, share=share)))
        assert "svg" in shape.tags
        for word in drawn(*values, share=share).replace('"', " ").replace(",", " ").split():
            assert word not in ("nan", "inf", "-inf")


def test_a_long_line_is_thinned_evenly_with_its_ends():
    points = [Point(n, float(n)) for n in range(5000)]
    some = thin(points)
    assert len(some) == POINTS and (some[0], some[-1]) == (points[0], points[-1])


def test_numbers_are_short():
    values = (0.0, 0.25, 1234.5, 3e-6, 1e12, -0.5)
    assert [number(v) for v in values] == ["0", "0.25", "1,234", "3e-06", "1e+12", "-0.5"]

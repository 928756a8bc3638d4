"""The picture of a run's progress."""

import re
from xml.etree import ElementTree

from benchmarks.demo_plot import picture


def test_every_step_and_evaluation_is_in_the_picture():
    lines = [
        {"kind": "eval", "step": 0, "success": 0.25},
        *({"kind": "step", "step": s, "group/success_base": s / 4} for s in range(1, 5)),
        {"kind": "eval", "step": 4, "success": 1.0},
    ]
    text = picture(lines)
    ElementTree.fromstring(text)
    places = [len(points.split()) for points in re.findall(r'points="([^"]*)"', text)]
    assert places == [4, 0, 0] and text.count("<circle") == 2
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', text)]
    assert heights[0] > heights[1], "a higher share is higher up"
    assert "0.25" in text and "1.00" in text
    beside = picture(lines, lines[:1])
    assert beside.count("<circle") == 3 and "algorithm=grpo" in beside
    assert "algorithm=grpo" not in text

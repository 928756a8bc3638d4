"""ScienceWorld's tasks in the jar of scienceworld 1.2.3 (compared by
tests/envs/adapters/test_scienceworld.py)."""

from __future__ import annotations

from typing import NamedTuple

_TABLE = """
boil 14 7 9 66
change-the-state-of-matter-of 14 7 9 58
chemistry-mix 16 8 8 39
chemistry-mix-paint-secondary-color 18 9 9 21
chemistry-mix-paint-tertiary-color 18 9 9 29
find-animal 150 75 75 16
find-living-thing 150 75 75 16
find-non-living-thing 150 75 75 7
find-plant 150 75 75 12
freeze 14 7 9 81
grow-fruit 62 31 33 63
grow-plant 62 31 33 67
identify-life-stages-1 6 3 5 41
identify-life-stages-2 4 2 4 17
inclined-plane-determine-angle 84 42 42 79
inclined-plane-friction-named-surfaces 692 346 348 65
inclined-plane-friction-unnamed-surfaces 80 40 42 180
lifespan-longest-lived 62 31 32 6
lifespan-longest-lived-then-shortest-lived 62 31 32 7
lifespan-shortest-lived 62 31 32 6
measure-melting-point-known-substance 218 109 109 27
measure-melting-point-unknown-substance 150 75 75 32
melt 14 7 9 34
mendelian-genetics-known-plant 60 30 30 127
mendelian-genetics-unknown-plant 240 120 120 132
power-component 10 5 5 13
power-component-renewable-vs-nonrenewable-energy 10 5 5 28
test-conductivity 450 225 225 21
test-conductivity-of-unknown-substances 300 150 150 37
use-thermometer 270 135 135 22
"""
"""Task, variations in train, dev and test, longest gold path seen (of three variations)."""


class Sizes(NamedTuple):
    """Variations per split; numbers run through train, then dev, then test."""

    train: int
    dev: int
    test: int


_ROWS = [line.split() for line in _TABLE.split("\n") if line]
SPLITS = {name: Sizes(int(a), int(b), int(c)) for name, a, b, c, _ in _ROWS}
LIMITS = {name: max(30, 3 * int(gold) // 2) for name, *_, gold in _ROWS}
"""Step limit of each task: 1.5 times its gold path, at least 30."""

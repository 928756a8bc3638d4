"""Compares the mean rewards of blocks of attempts over a whole run: the first, the best, the last.

The noise of a block is estimated from the differences between neighbours (von Neumann 1941),
because neither a slow rise nor a single fall makes these much larger.
"""

import math
from typing import NamedTuple

WINDOW = 10
"""Blocks whose mean is compared, each of 64 attempts or more."""
CLEAR = 3.0
"""Standard errors by which the last blocks must lie above the first ones."""
SURE = 6.0
"""Standard errors by which the last blocks must lie below the best ones, which are the highest of
many: with a probability of about 0.1 %, the best of 1000 windows without a trend lies that far
above a later one."""
MUCH = 0.2
"""Part of the best mean reward that must be lost, too."""


class Course(NamedTuple):
    """What the blocks so far say. `first`: the mean of the first window. `best`: the mean of the
    highest window. `squares`: sum of the squared differences of neighbours."""

    blocks: int = 0
    first: float = math.nan
    best: float = -math.inf
    newest: tuple[float, ...] = ()
    squares: float = 0.0

    def after(self, reward: float) -> "Course":
        """Returns the course after the next block. `reward`: the block's mean reward; NaN changes
        nothing."""
        if not math.isfinite(reward):
            return self
        squares = self.squares + sum((reward - one) ** 2 for one in self.newest[-1:])
        newest = (*self.newest, reward)[-WINDOW:]
        mean, count = sum(newest) / len(newest), self.blocks + 1
        first = mean if count <= WINDOW else self.first
        best = max(self.best, mean) if count >= WINDOW else self.best
        return Course(count, first, best, newest, squares)

    @property
    def last(self) -> float:
        """The mean reward of the last window."""
        return sum(self.newest) / len(self.newest)

    @property
    def error(self) -> float:
        """The standard error of the difference of two windows."""
        noise = math.sqrt(self.squares / 2 / (self.blocks - 1))
        return noise * math.sqrt(2 / WINDOW)

    @property
    def rose(self) -> bool:
        """Whether the last blocks lie clearly above the first ones."""
        return self.blocks >= 2 * WINDOW and self.last - self.first > CLEAR * self.error

    @property
    def fell(self) -> bool:
        """Whether the last blocks lie far below the best ones."""
        if self.blocks < 2 * WINDOW:
            return False
        return self.best - self.last > max(SURE * self.error, MUCH * abs(self.best))

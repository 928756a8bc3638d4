"""Measures how many attempts keep the engine busy.

An attempt is a request in the engine only part of the time; its environment takes the rest. The
slower the environment, the more attempts are needed.
"""

from __future__ import annotations

SMOOTHING = 0.1  # weight of one observation; observed every 0.1 s: a memory of a second
LEAST_SHARE = 0.125  # at most 8 attempts for each wanted request, for any environment


class Occupancy:
    """Keeps a running mean of the share of live attempts that are requests in the engine."""

    def __init__(self, target: int) -> None:
        self.target, self.share = target, 1.0

    def observe(self, running: int, live: int) -> None:
        """Record that `running` of `live` attempts have a request in the engine now."""
        if live:
            seen = min(max(running / live, LEAST_SHARE), 1.0)
            self.share += SMOOTHING * (seen - self.share)

    def admits(self, live: int, more: int) -> bool:
        """Whether `live` and `more` attempts together stay within the target; the first ones always
        do."""
        return live == 0 or (live + more) * self.share <= self.target

    def missing(self, live: int) -> float:
        """The share of the target that the live attempts do not fill, 0 to 1."""
        return max(0.0, 1.0 - live * self.share / self.target)

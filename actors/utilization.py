"""Measures how many attempts are needed to keep the engine busy.

An attempt has a request in the engine only part of the time; the rest of the time, it waits for its
environment. The slower the environment, the more attempts are needed.
"""

SMOOTHING = 0.1  # weight of an observation; with one every 0.1 s, a memory of about a second
LEAST_SHARE = 0.125  # at most 8 attempts for each wanted request, for any environment


class Occupancy:
    """Measures the share of attempts that have a request in the engine. `target`: the wanted number
    of requests."""

    def __init__(self, target: int) -> None:
        self.target, self.share = target, 1.0

    def observe(self, running: int, live: int) -> None:
        """Records how many of the live attempts have a request in the engine."""
        if live:
            seen = min(max(running / live, LEAST_SHARE), 1.0)
            self.share += SMOOTHING * (seen - self.share)

    def admits(self, live: int, more: int) -> bool:
        """Returns whether the target has room for `more` attempts. There is always room if no
        attempt is live."""
        return live == 0 or (live + more) * self.share <= self.target

    def missing(self, live: int) -> float:
        """Returns the share of the target that the live attempts leave unfilled (0 to 1)."""
        return max(0.0, 1.0 - live * self.share / self.target)

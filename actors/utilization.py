"""The utilization of the engine: how many attempts it needs, and how long it lacked them.

An attempt is a request in the engine only part of the time; the environment takes the rest. The
slower the environment, the more attempts keep the engine busy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

SMOOTHING = 0.1  # weight of one observation; observed every 0.1 s: a memory of a second
LEAST_SHARE = 0.125  # at most 8 attempts for each request wanted, for any environment


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
        """Whether `live` and `more` attempts stay within the target; the first ones always do."""
        return live == 0 or (live + more) * self.share <= self.target

    def missing(self, live: int) -> float:
        """The share of the target that the live attempts do not fill, 0 to 1."""
        return max(0.0, 1.0 - live * self.share / self.target)


@dataclass
class CacheLoad:
    """The load of an engine's KV cache.

    `usage`: the share that requests hold, after the latest step; `preemptions`: requests that lost
    their place since they were taken last. Their tokens are computed again.
    """

    usage: float = 0.0
    preemptions: int = 0

    def take_preemptions(self) -> int:
        """The preemptions since the last call."""
        taken, self.preemptions = self.preemptions, 0
        return taken


class Idleness:
    """The time in which the engine lacked requests because no lease was granted.

    Enter it while waiting for a lease; `observe` sets the share of requests that is missing.
    """

    def __init__(self) -> None:
        self._waiting, self._missing = False, 0.0
        self._idle_s, self._since = 0.0, time.monotonic()
        self._reported = (0.0, self._since)

    def __enter__(self) -> None:
        self._advance()
        self._waiting = True

    def __exit__(self, *_: object) -> None:
        self._advance()
        self._waiting = False

    def observe(self, missing: float) -> None:
        """Set the share of the wanted requests that is missing, 0 to 1, from now on."""
        self._advance()
        self._missing = missing

    def share(self) -> float:
        """The idle share of the time since the last call."""
        self._advance()
        idle_s, then = self._reported
        self._reported = (self._idle_s, self._since)
        return (self._idle_s - idle_s) / max(self._since - then, 1e-6)

    def _advance(self) -> None:
        now = time.monotonic()
        self._idle_s += (now - self._since) * self._missing * self._waiting
        self._since = now

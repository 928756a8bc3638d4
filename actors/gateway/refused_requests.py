"""The latest requests that the gateway refused, and whose they were.

If an attempt's agent makes no call, the error names these requests. They show to which address the
agent's client sends its requests.
"""

import time
from collections import deque
from dataclasses import dataclass

from r3l.text import label

MOST_KEPT = 256
"""Refused requests that an actor keeps, the latest ones."""
MOST_NAMED = 5
"""Different requests that an attempt's error names."""


@dataclass(frozen=True)
class _RefusedRequest:
    """`at`: monotonic seconds. `key`: the attempt's key, "" if the request had none."""

    at: float
    key: str
    text: str


class RefusedRequests:
    """Keeps refused requests of all attempts."""

    def __init__(self) -> None:
        self._latest = deque[_RefusedRequest](maxlen=MOST_KEPT)

    def add(self, key: str, request: str, why: str) -> None:
        """Adds a refused request. `request`: its method and path. `why`: the status, and a
        sentence."""
        text = f"{label(request)} ({label(why, 160)})"
        self._latest.append(_RefusedRequest(time.monotonic(), key, text))

    def of(self, key: str, began: float) -> list[str]:
        """Returns the refused requests with an attempt's key since `began` (monotonic seconds). If
        there are none, returns the requests without the key of any attempt. Names equal requests
        once."""
        recent = [each for each in self._latest if each.at >= began]
        found = [e for e in recent if e.key == key] or [e for e in recent if not e.key]
        return [*dict.fromkeys(each.text for each in found)][:MOST_NAMED]

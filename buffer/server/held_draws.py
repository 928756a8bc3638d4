"""Holds draw requests while too few groups are ready, and checks them after every write
transaction.

    draw ─► too few groups ─► held ─► may be filled, impossible or overdue ─► "ask again" ─► draw

Only the client's second request takes groups. So a client that is gone takes none, and its draw is
forgotten after the reply.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from buffer.groups.index import Index
from buffer.wire.messages import Request
from r3l.settings.sampling import SamplerConfig

HELD_S = 15.0  # the longest that a draw is held
ENDED = 4096  # draws without groups that are remembered


@dataclass(frozen=True)
class Held:
    """A held draw. `until`: when it must end at the latest, on the steady clock."""

    request: Request
    until: float


class HeldDraws:
    """The held draws, and the last draws that ended without groups: after the reply that there are
    too few, a late copy of the request may not take any."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}  # by request id
        self._ended: dict[str, None] = {}

    def begin(self, request: Request) -> bool:
        """Stop holding a draw; returns False if it has already ended without groups."""
        self._held.pop(request.rid, None)
        return request.rid not in self._ended

    def hold(self, request: Request) -> bool:
        """Hold a draw for which there are too few groups; returns whether it is held. A draw that
        may not wait ends instead."""
        if request.hold_s > 0 and request.rid not in self._ended:
            until = time.monotonic() + min(request.hold_s, HELD_S)
            self._held[request.rid] = Held(request, until)
            return True
        self._ended[request.rid] = None
        if len(self._ended) > ENDED:
            del self._ended[next(iter(self._ended))]
        return False

    def take(self, index: Index, sampler: SamplerConfig, *, last: bool) -> list[Request]:
        """Remove and return the draws whose clients should ask again, all of them if `last`."""
        if not self._held:
            return []
        now, newest = time.monotonic(), index.progress.version + 1
        taken = [
            held.request
            for held in self._held.values()
            if last
            or now >= held.until
            or (draw := held.request.arguments).version > newest
            or draw.count <= index.ready(draw.count, sampler)
        ]
        for request in taken:
            del self._held[request.rid]
        return taken

    @property
    def until(self) -> float:
        """When the first held draw becomes overdue, on the steady clock."""
        return min((held.until for held in self._held.values()), default=float("inf"))

"""Recognises requests that are sent again, while they are under way or were answered recently.

    request ─► begin ─► … writer, readers … ─► end ─► reply, to the socket that asked last
    again   ─► under way: its client is told to wait; answered: it gets the same reply

So no request is carried out, read or queued twice because its reply is slow. A large reply is not
kept: it is made again, unless it is still on its way to the same client. A message without a
checksum never counts as a repeat, since clients that send no checksum may use an id twice.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from buffer.wire.messages import ReceivedRequest
from buffer.wire.sockets import Frame

KEPT_S = 60.0  # that a reply is kept, and that a request counts as under way
KEPT = 4096  # replies
KEPT_BYTES = 4096  # of a reply that is kept

Key = tuple[str, str]  # of a request: its operation and its id


@dataclass
class Known:
    """A request that came before. `sum`: its checksum. `client`: who gets the reply; None once the
    reply was sent. `frames`: the reply; empty until it is made, and always empty if it is large.
    `at`: when the request came, or the reply was sent."""

    key: Key
    sum: int | None
    client: bytes | None
    frames: Sequence[Frame] = ()
    at: float = field(default_factory=time.monotonic)


class Repeats:
    """The requests under way and the latest answered ones. Only the front may use it."""

    def __init__(self) -> None:
        self._under_way: dict[Key, Known] = {}
        self._answered: OrderedDict[Key, Known] = OrderedDict()

    def begin(self, request: ReceivedRequest) -> None:
        """Notes a request that will be answered."""
        self._under_way[request.key] = Known(request.key, request.sum, request.client)

    def find(self, key: Key, total: int | None) -> Known | None:
        """Returns the earlier request with this id and checksum, or None. If `total` is None, any
        checksum matches."""
        known = self._under_way.get(key) or self._answered.get(key)
        if known is None or known.at < time.monotonic() - KEPT_S:
            return None
        return known if known.sum is not None and total in (None, known.sum) else None

    def end(self, request: ReceivedRequest, frames: Sequence[Frame]) -> bytes:
        """Notes the reply to a request. Returns the client that gets it."""
        known = self._under_way.pop(request.key, None) or Known(
            request.key, request.sum, request.client
        )
        client, known.client, known.at = known.client, None, time.monotonic()
        known.frames = frames if sum(map(len, frames)) <= KEPT_BYTES else ()
        self._answered[request.key] = known
        if len(self._answered) > KEPT:
            self._answered.popitem(last=False)
        return client or request.client

    def forget(self, request: ReceivedRequest) -> None:
        """Forgets an answered request, which is carried out again if it comes again."""
        self._answered.pop(request.key, None)

"""The requests that wait for the writer, in an order that is fair to every client.

    front ── put ──► small: one of each client in turn ──┐
                     large: one of each client in turn ──┴── take ──► a transaction of the writer

A small request, such as a heartbeat, a lease or a commit, goes before all large ones, which are
results. So a small request waits only for the transaction under way, and for at most one small
request of each other client. Some places of every transaction are kept for large requests, so that
they too move on. A transaction with small requests takes only a few bytes of large ones, since the
small requests wait for its commit. Requests of one client may overtake each other; requests that
are sent again always could.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable

from buffer.wire.messages import ReceivedRequest
from buffer.wire.sockets import LARGE

KEPT_FOR_LARGE = 16  # places of a transaction
MIXED_BYTES = 4 << 20  # of a transaction that has small requests


class Turns:
    """Requests of many clients, which take turns. The requests of one client keep their order."""

    def __init__(self) -> None:
        self._waiting = OrderedDict[bytes, deque[ReceivedRequest]]()  # whose turn it is first
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, request: ReceivedRequest) -> None:
        """Adds a request. If no other request of its client waits, the client gets the last
        turn."""
        self._waiting.setdefault(request.client, deque()).append(request)
        self._length += 1

    def next(self) -> ReceivedRequest:
        """Takes a request of the client whose turn it is. There must be one."""
        client, own = self._waiting.popitem(last=False)
        request = own.popleft()
        if own:
            self._waiting[client] = own
        self._length -= 1
        return request


class FairQueue:
    """A queue of requests from the front to the writer."""

    def __init__(self) -> None:
        self._small, self._large = Turns(), Turns()
        self._changed = threading.Condition()
        self._ended = False

    def put(self, requests: Iterable[ReceivedRequest]) -> None:
        """Adds requests."""
        with self._changed:
            for request in requests:
                (self._large if request.nbytes >= LARGE else self._small).add(request)
            self._changed.notify()

    def end(self) -> None:
        """Marks the end of the queue: no more requests will come."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def take(self, until: float, most: int, most_bytes: int) -> tuple[list[ReceivedRequest], bool]:
        """Waits for requests, at the latest until `until` (monotonic seconds). Takes up to `most`
        of them. Stops once they have `most_bytes`, or MIXED_BYTES if small requests are among them.
        Returns the requests, and whether more may follow."""
        with self._changed:
            while not (self._small or self._large or self._ended):
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    return [], True
            kept = min(KEPT_FOR_LARGE, most // 2, len(self._large))
            taken = [self._small.next() for _ in range(min(len(self._small), most - kept))]
            if taken:
                most_bytes = min(most_bytes, MIXED_BYTES)
            size = sum(request.nbytes for request in taken)
            while self._large and len(taken) < most and size < most_bytes:
                taken.append(self._large.next())
                size += taken[-1].nbytes
            return taken, not self._ended or bool(self._small or self._large)

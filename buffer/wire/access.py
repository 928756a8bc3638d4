"""The gate: who may connect, and how many.

libzmq asks about every new connection (ZAP 1.0, RFC 27) and is told yes while there is room and,
where the service has keys, if the peer's key is on its list. Nobody is let in without an answer.

A peer that connects and says nothing, or half of who it is, takes no place, or a few of them would
keep everybody else out; libzmq closes its connection after HANDSHAKE_S. Those that say it at the
very same moment may be let in together beyond the last place.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import Counter, deque
from typing import Any

import zmq
from zmq.utils import z85

from buffer.wire.curve_keys import ServiceKeys

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"r3l-buffer"
HANDSHAKE_S = 10.0  # for a new connection to say who it is
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=Hi")  # of libzmq's monitor: what happened, to which file descriptor


class Gate:
    """Guards a ROUTER that is not bound yet; `look` when one of `sockets` is readable.

    `turned_away`: connections refused, by why.
    """

    def __init__(
        self, context: Any, router: Any, keys: ServiceKeys | None, connections: int
    ) -> None:
        self._allowed = {z85.decode(key.encode()) for key in keys.allowed} if keys else None
        self._limit = connections
        self._open: dict[int, float] = {}  # connections by file descriptor, and since when
        self._let_in: deque[float] = deque()  # when, those of the last HANDSHAKE_S, gone ones too
        self.turned_away: Counter[str] = Counter()
        _protect(router, keys)
        self._router = router
        self._events = router.get_monitor_socket(_EVENTS)
        self._questions = context.socket(zmq.REP)
        self._questions.bind(ZAP_ENDPOINT)
        self.sockets = (self._events, self._questions)

    def look(self) -> None:
        """Count connections that came and went, then answer whether new ones may stay."""
        now = time.monotonic()
        while self._events.poll(0):
            what, connection = _EVENT.unpack(self._events.recv_multipart()[0])
            if what == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._let_in.append(now)
                continue
            self._open.pop(connection, None)
            if what == zmq.EVENT_ACCEPTED:
                self._open[connection] = now
        while self._let_in and self._let_in[0] < now - HANDSHAKE_S:
            self._let_in.popleft()
        while self._questions.poll(0):
            version, request, domain, _, _, mechanism, *credentials = (
                self._questions.recv_multipart()
            )
            why_not = self._why_not(domain, mechanism, credentials, now)
            self.turned_away[why_not] += bool(why_not)
            verdict = (b"400", why_not.encode()) if why_not else (b"200", b"OK")
            self._questions.send_multipart([version, request, *verdict, b"", b""])

    def close(self) -> None:
        """Let nobody in any more."""
        self._router.disable_monitor()
        self._events.close(linger=0)
        self._questions.close(linger=0)

    def _why_not(
        self, domain: bytes, mechanism: bytes, credentials: list[bytes], now: float
    ) -> str:
        if self._allowed is not None:
            known = mechanism == b"CURVE" and credentials and credentials[0] in self._allowed
            if domain != ZAP_DOMAIN or not known:
                return "unknown_key"
        full = len(self._open) > self._limit and self._at_most(now) >= self._limit
        return "too_many_connections" if full else ""

    def _at_most(self, now: float) -> int:
        """Connections that were let in and are open, at most: those that outlived the time for
        saying who they are, and all let in since."""
        since = now - HANDSHAKE_S
        outlived = itertools.takewhile(lambda opened: opened < since, self._open.values())
        return sum(1 for _ in outlived) + len(self._let_in)


def _protect(router: Any, keys: ServiceKeys | None) -> None:
    """Make a socket ask the gate about every connection, and encrypt where there are keys."""
    router.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without it a missing gate would let everybody in
    if keys is not None:
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, keys.secret.encode())

"""Who may connect, and how many.

libzmq asks about every new connection (ZAP 1.0, RFC 27). It is accepted while there are fewer than
the limit and, if the service has keys, if the peer's key is on one of its lists: that of clients,
or that of learners. Without keys every peer has a learner's rights. A connection is refused if the
check gives no reply.

A peer that does not finish its handshake does not count, or a few of them would lock out all
others; libzmq closes its connection after HANDSHAKE_S. Peers that finish at the very same moment
may be accepted together beyond the limit. Connections that bring too much are shut down, and so are
the oldest of too many silent ones (buffer.wire.traffic).
"""

from __future__ import annotations

import itertools
import resource
import struct
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import zmq
from zmq.utils import z85

from buffer.wire.curve_keys import ServiceKeys
from buffer.wire.traffic import Limits, Traffic
from r3l.errors import UserError
from r3l.process.memory import return_freed_memory

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"r3l-buffer"
CLIENT, LEARNER = "client", "learner"  # roles of a connection, by its key
CONNECTIONS = 1024  # clients of the buffer, unless told otherwise
SPARE_FILES = 1000  # open files that are not connections, and spare ones for refused connections
HANDSHAKE_S = 10.0  # for a new connection to say who it is
FREES_S = 1.0  # for libzmq to free what a connection had
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=Hi")  # of libzmq's monitor: what happened, to which file descriptor


class Access:
    """Guards a ROUTER that is not bound yet; `update` at least every LOOKS_S, and when one of
    `sockets` is readable.

    `refused`: connections refused or shut down, by cause.
    """

    def __init__(
        self,
        context: Any,
        router: Any,
        keys: ServiceKeys | None,
        connections: int,
        limits: Limits,
    ) -> None:
        self._roles = _roles(keys) if keys else None
        self._limit = connections
        self._open: dict[int, float] = {}  # connections by file descriptor, and since when
        self._accepted: deque[float] = deque()  # when, in the last HANDSHAKE_S, closed ones too
        self.traffic = Traffic(limits, encrypted=keys is not None)
        self._trim_at = 0.0  # or 0: no memory to give back
        self._ended_at = 0.0  # when a connection was last shut down
        self.refused: Counter[str] = Counter()
        _protect(router, keys)
        self._router = router
        self._events = router.get_monitor_socket(_EVENTS)
        self._requests = context.socket(zmq.REP)
        self._requests.bind(ZAP_ENDPOINT)
        self.sockets = (self._events, self._requests)

    def update(self) -> None:
        """Count connections that opened and closed, accept or refuse new ones, and shut down those
        that bring too much."""
        now = time.monotonic()
        while self._events.poll(0):
            what, connection = _EVENT.unpack(self._events.recv_multipart()[0])
            if what == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._accepted.append(now)
                continue
            self._open.pop(connection, None)
            self.traffic.closed(connection)
            if what == zmq.EVENT_ACCEPTED:
                self._open[connection] = now
                self.traffic.opened(connection)
        while self._accepted and self._accepted[0] < now - HANDSHAKE_S:
            self._accepted.popleft()
        while self._requests.poll(0):
            version, request, domain, _, _, mechanism, *credentials = (
                self._requests.recv_multipart()
            )
            role = self._role(domain, mechanism, credentials)
            cause = self._refusal(role, now)
            self.refused[cause] += bool(cause)
            verdict = (b"400", cause.encode(), b"") if cause else (b"200", b"OK", role.encode())
            self._requests.send_multipart([version, request, *verdict, b""])
        ended = self.traffic.look(now)
        self.refused += ended
        self._trim(now, ended=bool(ended))

    def asked(self, ready: Mapping[Any, int]) -> bool:
        """Whether one of `sockets` is among those that are ready."""
        return any(socket in ready for socket in self.sockets)

    def close(self) -> None:
        """Accept no more connections."""
        self._router.disable_monitor()
        self._events.close(linger=0)
        self._requests.close(linger=0)

    def _trim(self, now: float, *, ended: bool) -> None:
        """Give the memory of connections that were shut down back to the system, at most every
        FREES_S, and FREES_S after the last one ended: what came in many small frames would stay in
        the heap."""
        if self._trim_at and now >= self._trim_at:
            return_freed_memory()
            self._trim_at = now + FREES_S if now < self._ended_at + FREES_S else 0.0
        if ended:
            self._ended_at = now
            self._trim_at = self._trim_at or now + FREES_S

    def _role(self, domain: bytes, mechanism: bytes, credentials: list[bytes]) -> str:
        if self._roles is None:
            return LEARNER
        if domain != ZAP_DOMAIN or mechanism != b"CURVE" or not credentials:
            return ""
        return self._roles.get(credentials[0], "")

    def _refusal(self, role: str, now: float) -> str:
        if not role:
            return "unknown_key"
        full = len(self._open) > self._limit and self._upper_bound(now) >= self._limit
        return "too_many_connections" if full else ""

    def _upper_bound(self, now: float) -> int:
        """At most so many accepted connections are open: those older than a handshake may take,
        and all accepted since."""
        since = now - HANDSHAKE_S
        older = itertools.takewhile(lambda opened: opened < since, self._open.values())
        return sum(1 for _ in older) + len(self._accepted)


def check_connections(connections: int) -> int:
    """The open files that a service for so many clients needs; every connection takes one. Raises
    UserError if this system allows fewer."""
    needed = connections + SPARE_FILES
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        raise UserError(
            f"--connections {connections}: need {needed} open files, this system allows {most} "
            "(ulimit -Hn); ask for fewer"
        )
    return needed


def allow_files(wanted: int) -> int:
    """Let this process have so many open files, or as many as the system allows; returns how many.
    Every connection takes one."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if wanted > now:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return max(now, wanted)


def _roles(keys: ServiceKeys) -> dict[bytes, str]:
    lists = ((CLIENT, keys.clients), (LEARNER, keys.learners))
    return {z85.decode(key.encode()): role for role, listed in lists for key in listed}


def _protect(router: Any, keys: ServiceKeys | None) -> None:
    """Make a socket ask about every connection, not wait for one that stays silent, and encrypt if
    there are keys."""
    router.set(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
    router.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else all are accepted if no thread handles them
    if keys is not None:
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, keys.secret.encode())

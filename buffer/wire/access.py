"""Decides who may connect, and limits the number of connections.

libzmq asks about every new connection (ZAP 1.0, RFC 27). A connection is accepted if
- there are fewer connections than the limit, and
- the service has no keys, or lists the peer's key.
Without keys every peer has a learner's rights.

A connection counts once its handshake is finished. If it counted earlier, a few silent peers could
lock out all others. libzmq closes a connection whose handshake takes longer than HANDSHAKE_S.
Handshakes that finish at the same moment may exceed the limit together. buffer.wire.traffic shuts
down connections that send too much. If too many connections are silent, it shuts down the oldest.
"""

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
from buffer.wire.sockets import NO_PLACE, UNKNOWN_KEY, new_socket
from buffer.wire.traffic import CHECK_S, Limits, Traffic
from r3l.run.process.memory import return_freed_memory

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"r3l-buffer"
CLIENT, LEARNER = "client", "learner"  # roles of a connection, by its key
HANDSHAKE_S = 10.0  # for a new connection to finish its handshake
FREES_S = 1.0  # that libzmq may take to free the memory of a connection
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=Hi")  # of libzmq's monitor: kind, file descriptor
FULL = "too_many_connections"
_STATUS = {"unknown_key": UNKNOWN_KEY, FULL: NO_PLACE}


class Access:
    """Guards a ROUTER, and must be created before the ROUTER is bound. Poll the ROUTER and
    `sockets` together, for at most CHECK_S. After each poll, call `update` if it is due. `refused`:
    connections refused or shut down, counted by cause."""

    def __init__(
        self, context: Any, router: Any, keys: ServiceKeys | None, connections: int, limits: Limits
    ) -> None:
        self._roles = _roles(keys) if keys else None
        self._limit = connections
        self._open: dict[int, float] = {}  # by file descriptor: when the connection opened
        self._accepted: deque[float] = deque()  # times in the last HANDSHAKE_S, also of closed ones
        self.traffic = Traffic(limits, encrypted=keys is not None)
        self._updated_at = 0.0
        self._trim_at = 0.0  # when to return freed memory; 0 if there is none
        self._shut_down_at = 0.0  # when a connection was last shut down
        self._full_at: float | None = None  # when a connection last found no place
        self.refused: Counter[str] = Counter()
        _protect(router, keys)
        self._router = router
        self._events = router.get_monitor_socket(_EVENTS)
        self._requests = new_socket(context, zmq.REP)
        self._requests.bind(ZAP_ENDPOINT)
        self.sockets = (self._events, self._requests)

    def update(self) -> None:
        """Counts opened and closed connections, accepts or refuses new ones, and shuts down
        connections that send too much."""
        now = self._updated_at = time.monotonic()
        while self._events.poll(0):
            kind, connection = _EVENT.unpack(self._events.recv_multipart()[0])
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._accepted.append(now)
                continue
            self._open.pop(connection, None)
            self.traffic.closed(connection)
            if kind == zmq.EVENT_ACCEPTED:
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
            self._full_at = now if cause == FULL else self._full_at
            verdict = (b"200", b"OK", role.encode())
            if cause:  # libzmq tells the peer the status alone
                verdict = b"%d" % _STATUS[cause], cause.encode(), b""
            self._requests.send_multipart([version, request, *verdict, b""])
        shut_down = self.traffic.check(now)
        self.refused += shut_down
        self._trim(now, shut_down=bool(shut_down))

    def is_due(self, ready: Mapping[Any, int]) -> bool:
        """Returns True if one of `sockets` is ready or CHECK_S has passed since the last update."""
        due = time.monotonic() >= self._updated_at + CHECK_S
        return due or any(socket in ready for socket in self.sockets)

    def full_ago_s(self) -> float | None:
        """Returns how many seconds ago the service last refused a connection because it was full;
        None if it never did. Any thread may call this."""
        return None if self._full_at is None else time.monotonic() - self._full_at

    def close(self) -> None:
        self._router.disable_monitor()
        self._events.close(linger=0)
        self._requests.close(linger=0)
        self.traffic.close()

    def _trim(self, now: float, *, shut_down: bool) -> None:
        """After shutdowns, returns freed memory to the system, at most once per FREES_S."""
        if self._trim_at and now >= self._trim_at:
            return_freed_memory()  # else the heap keeps many small frames
            self._trim_at = now + FREES_S if now < self._shut_down_at + FREES_S else 0.0
        if shut_down:
            self._shut_down_at = now
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
        return FULL if full else ""

    def _upper_bound(self, now: float) -> int:
        """Returns at least the number of open connections that finished a handshake: those older
        than HANDSHAKE_S, plus all handshakes of the last HANDSHAKE_S."""
        since = now - HANDSHAKE_S
        older = itertools.takewhile(lambda opened: opened < since, self._open.values())
        return sum(1 for _ in older) + len(self._accepted)


def allow_files(count: int) -> int:
    """Increases this process's limit of open files to `count`, or as far as the system allows.
    Returns the limit."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        count = min(count, most)
    if count > now:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))
    return max(now, count)


def _roles(keys: ServiceKeys) -> dict[bytes, str]:
    lists = ((CLIENT, keys.clients), (LEARNER, keys.learners))
    return {z85.decode(key.encode()): role for role, listed in lists for key in listed}


def _protect(router: Any, keys: ServiceKeys | None) -> None:
    """Lets Access decide about each connection to a socket. Encrypts connections if there are
    keys."""
    router.set(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
    router.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else all are accepted if no thread handles them
    if keys is not None:
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, keys.secret.encode())

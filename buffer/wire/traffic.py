"""Counts the unread bytes of each connection. Shuts down a connection with too many unread bytes.

libzmq limits the size of a frame (MAXMSGSIZE) and the number of messages (RCVHWM), but not the
number of frames in a message. It keeps all frames until the last one arrives. It also reads bytes
of peers that have not shown a key yet. Unread bytes are the bytes that the kernel received on the
connection (TCP_INFO, Linux 4.19), minus the bytes of messages that were read. After a shutdown,
libzmq frees the connection's unfinished message. A regular client connects again.

A check costs about 4 µs for each connection and runs every CHECK_S. A fast link can exceed a limit
between two checks.
"""

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from buffer.wire.sockets import Received

CHECK_S = 0.05
HANDSHAKE_BYTES = 8192  # more than a handshake needs
HEARTBEAT_RATE = 64.0  # bytes a second that are heartbeats, which libzmq reads itself
_GREETING = {False: 64, True: 64 + 170}  # bytes sent, CURVE or not, before a handshake is done
_RECEIVED, _SENT, _TCP_INFO = 128, 200, 208  # offsets in struct tcp_info, and its size
_COUNT = struct.Struct("=Q")


@dataclass(frozen=True)
class Limits:
    """Upper limits. `connection`: unread bytes of one connection. `total`: unread bytes of all
    connections. `silent`: number of connections with an unfinished handshake."""

    connection: int
    total: int
    silent: int = 512


@dataclass
class Connection:
    """An open connection. `client`: the peer's routing id, empty until a message is read.
    `received`: bytes so far. `unread`: bytes of unread messages."""

    peer: object
    client: bytes = b""
    handshake_done: bool = False
    received: int = 0
    unread: float = 0.0
    shut_down: bool = False


class Traffic:
    """The connections of one bound socket, keyed by file descriptor, the oldest first."""

    def __init__(self, limits: Limits, *, encrypted: bool) -> None:
        self.limits, self.encrypted = limits, encrypted
        self.connections: dict[int, Connection] = {}
        self._checked_at = time.monotonic()
        self._opened = 0  # connections since then

    def opened(self, connection: int) -> None:
        self.connections.pop(connection, None)
        self._opened += 1
        with suppress(OSError), _borrowed(connection) as borrowed:  # it may be closed by now
            self.connections[connection] = Connection(borrowed.getpeername())

    def closed(self, connection: int) -> None:
        self.connections.pop(connection, None)

    def mark_read(self, message: Received) -> None:
        """Subtracts a message's bytes from its connection's unread bytes."""
        if (known := self.connections.get(message.connection)) is not None:
            known.client = message.client
            known.unread -= sum(self._wire_bytes(len(frame)) for frame in message.frames)

    def unread(self) -> int:
        return int(sum(c.unread for c in self.connections.values()))

    def check(self, now: float) -> Counter[str]:
        """Counts bytes, and shuts down connections that exceed a limit. Returns the number of
        shutdowns by cause."""
        causes: Counter[str] = Counter()
        passed = now - self._checked_at
        if passed < CHECK_S and self._opened <= self.limits.silent // 2:  # few new connections
            return causes
        self._checked_at, self._opened = now, 0
        for number, connection in self.connections.items():
            self._count(number, connection, passed)
            if not connection.handshake_done and connection.received > HANDSHAKE_BYTES:
                causes["handshake_too_large"] += self._shut_down(number, connection)
            elif connection.unread > self.limits.connection:
                causes["message_too_large"] += self._shut_down(number, connection)
        for number in self._overdue():
            causes["too_many_silent"] += self._shut_down(number, self.connections[number])
        while self.unread() > self.limits.total and self.shut_down_largest({}):
            causes["messages_too_large"] += 1
        return causes

    def shut_down_largest(self, unsent: Mapping[bytes, int]) -> bool:
        """Shuts down the connection with the most unread and unsent bytes. Returns False if no
        connection is open. `unsent`: bytes, keyed by client."""
        sizes = {
            number: c.unread + unsent.get(c.client, 0)
            for number, c in self.connections.items()
            if not c.shut_down
        }
        if not sizes:
            return False
        largest = max(sizes, key=sizes.__getitem__)
        self._shut_down(largest, self.connections[largest])
        return True

    def _count(self, number: int, connection: Connection, passed: float) -> None:
        try:
            with _borrowed(number) as borrowed:
                info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO)
            received, sent = (_COUNT.unpack_from(info, at)[0] for at in (_RECEIVED, _SENT))
        except (OSError, struct.error):  # closed by now
            connection.handshake_done = True
            return
        new = received - connection.received
        connection.unread = max(0.0, connection.unread + new - HEARTBEAT_RATE * passed)
        connection.received = received
        connection.handshake_done |= sent > _GREETING[self.encrypted]

    def _overdue(self) -> list[int]:
        silent = [n for n, c in self.connections.items() if not (c.handshake_done or c.shut_down)]
        return silent[: max(0, len(silent) - self.limits.silent)]

    def _shut_down(self, number: int, connection: Connection) -> bool:
        """Shuts down a connection. libzmq then closes it. Returns False if it was not open."""
        if connection.shut_down:
            return False
        connection.shut_down, connection.unread = True, 0.0
        try:
            with _borrowed(number) as borrowed:
                if borrowed.getpeername() != connection.peer:  # the descriptor was reused
                    return False
                borrowed.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed by now
            return False
        return True

    def _wire_bytes(self, size: int) -> int:
        """Returns how many bytes a frame takes on the wire (ZMTP 3.1; CurveZMQ adds 33 bytes)."""
        size += 33 * self.encrypted
        return size + (2 if size < 256 else 9)


@contextmanager
def _borrowed(number: int) -> Iterator[socket.socket]:
    """Borrows a file descriptor from libzmq as a Python socket. Raises OSError if the descriptor is
    closed. If libzmq closed the connection, the descriptor may now belong to another connection."""
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=number)
    try:
        yield borrowed
    finally:
        borrowed.detach()

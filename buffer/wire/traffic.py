"""Bytes that connections have brought and nobody has taken, and an end of those with too many.

libzmq limits a frame (MAXMSGSIZE) and counts messages (RCVHWM). But a message may have any number
of frames and is kept until the last one has come, and a peer without a key is heard before it is
refused. The kernel counts the bytes of every TCP connection (TCP_INFO, Linux 4.19): those received,
less those of the messages that were taken, are held in memory. A connection that holds too many is
shut down, and libzmq frees what it had of the unfinished message. An honest peer connects again.

A look costs about 4 µs for each connection, and there are LOOKS_S between two; what a link brings
in that time can come on top of a limit. A local socket (ipc://) has no such count: only its own
user may open it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from buffer.wire.frames import Received

LOOKS_S = 0.05
HANDSHAKE_BYTES = 8192  # more than a handshake needs
HEARTBEAT_RATE = 64.0  # bytes a second that are heartbeats, which nobody takes
_GREETING = {False: 64, True: 64 + 170}  # bytes sent, CURVE or not, before a peer is let in
_RECEIVED, _SENT, _TCP_INFO = 128, 200, 208  # offsets in struct tcp_info, and its size
_COUNT = struct.Struct("=Q")


@dataclass(frozen=True)
class Limits:
    """`connection`: bytes held of one; `total`: of all together; `silent`: connections that have
    not finished their handshake, beyond which the oldest are shut down."""

    connection: int
    total: int
    silent: int = 512


@dataclass
class Connection:
    """`peer`: its address; `client`: its routing id, once a message was taken; `let_in`: whether
    its handshake is over; `received`: bytes; `held`: those that nobody has taken."""

    peer: object
    client: bytes = b""
    let_in: bool = False
    received: int = 0
    held: float = 0.0
    ended: bool = False


class Traffic:
    """The connections of one bound socket by their file descriptors, the oldest first."""

    def __init__(self, limits: Limits, *, encrypted: bool) -> None:
        self.limits, self.encrypted = limits, encrypted
        self.connections: dict[int, Connection] = {}
        self._looked = time.monotonic()
        self._opened = 0  # connections since then

    def opened(self, connection: int) -> None:
        """Count a connection from now on."""
        self.connections.pop(connection, None)
        self._opened += 1
        try:
            with _Borrowed(connection) as borrowed:
                self.connections[connection] = Connection(borrowed.getpeername())
        except OSError:  # closed by now
            pass

    def closed(self, connection: int) -> None:
        """Forget a connection."""
        self.connections.pop(connection, None)

    def taken(self, message: Received) -> None:
        """Subtract a message that was taken."""
        if (known := self.connections.get(message.connection)) is not None:
            known.client = message.client
            known.held -= sum(self._wire_bytes(len(frame)) for frame in message.frames)

    def held(self) -> int:
        """Bytes held of all connections, as of the last look."""
        return int(sum(c.held for c in self.connections.values()))

    def look(self, now: float) -> Counter[str]:
        """Count again, at most every LOOKS_S; returns how many connections were shut down, by
        cause."""
        causes: Counter[str] = Counter()
        passed = now - self._looked
        if passed < LOOKS_S and self._opened <= self.limits.silent // 2:
            return causes
        self._looked, self._opened = now, 0
        for number, connection in self.connections.items():
            self._count(number, connection, passed)
            if not connection.let_in and connection.received > HANDSHAKE_BYTES:
                causes["handshake_too_large"] += self._end(number, connection)
            elif connection.held > self.limits.connection:
                causes["message_too_large"] += self._end(number, connection)
        for number in self._overdue():
            causes["too_many_silent"] += self._end(number, self.connections[number])
        while self.held() > self.limits.total and self.end_largest({}):
            causes["messages_too_large"] += 1
        return causes

    def end_largest(self, unsent: Mapping[bytes, int]) -> bool:
        """Shut down the connection that holds most; False if none is left to be. `unsent`: bytes
        of replies that wait to be sent, by client."""
        sizes = {
            number: c.held + unsent.get(c.client, 0)
            for number, c in self.connections.items()
            if not c.ended
        }
        if not sizes:
            return False
        largest = max(sizes, key=sizes.__getitem__)
        self._end(largest, self.connections[largest])
        return True

    def _count(self, number: int, connection: Connection, passed: float) -> None:
        try:
            with _Borrowed(number) as borrowed:
                info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO)
            received, sent = (_COUNT.unpack_from(info, at)[0] for at in (_RECEIVED, _SENT))
        except (OSError, struct.error):  # closed by now, or a local socket
            connection.let_in = True
            return
        new = received - connection.received
        connection.held = max(0.0, connection.held + new - HEARTBEAT_RATE * passed)
        connection.received = received
        connection.let_in |= sent > _GREETING[self.encrypted]

    def _overdue(self) -> list[int]:
        silent = [n for n, c in self.connections.items() if not (c.let_in or c.ended)]
        return silent[: max(0, len(silent) - self.limits.silent)]

    def _end(self, number: int, connection: Connection) -> bool:
        """Shut a connection down, unless that was done before; the descriptor stays libzmq's."""
        if connection.ended:
            return False
        connection.ended, connection.held = True, 0.0
        try:
            with _Borrowed(number) as borrowed:
                if borrowed.getpeername() != connection.peer:  # another one's by now
                    return False
                borrowed.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed by now
            return False
        return True

    def _wire_bytes(self, size: int) -> int:
        """Bytes on the wire of a frame of that size (ZMTP 3.1; CurveZMQ adds 33)."""
        size += 33 * self.encrypted
        return size + (2 if size < 256 else 9)


class _Borrowed:
    """libzmq's file descriptor as a socket that is not closed. Raises OSError on entry if libzmq
    has closed it and it is no socket's now."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> socket.socket:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=self._number)
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.detach()

"""Counts the unread bytes of each connection. Shuts down a connection with too many unread bytes.

libzmq limits the size of a frame (MAXMSGSIZE) and the number of messages (RCVHWM), but not the
number of frames in a message. It keeps all frames until the last one arrives. It also reads bytes
of peers that have not shown a key yet. Unread bytes are the bytes that the kernel received on the
connection (TCP_INFO, Linux 4.19), minus the bytes of messages that were read. After a shutdown,
libzmq frees the connection's unfinished message. A regular client connects again.

A check runs every CHECK_S. It looks at some connections, which takes about 10 µs each:

- those with bytes that libzmq has not read yet, as the kernel reports (epoll, edge-triggered)
- those from which a message was read
- those without a finished handshake
- LOOKS others in turn, since the kernel does not report bytes that libzmq has already read

So a fast link can exceed a limit between two checks, and a slow one until its turn comes.
"""

import select
import socket
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from buffer.wire.sockets import Received
from buffer.wire.tcp_counts import borrow_socket, tcp_counts

CHECK_S = 0.05
LOOKS = 32  # connections that a check looks at in turn: 4,096 of them in 6.4 s
HANDSHAKE_BYTES = 8192  # more than a handshake needs
HEARTBEAT_RATE = 64.0  # bytes a second that are heartbeats, which libzmq reads itself
_GREETING = {False: 64, True: 64 + 170}  # bytes sent, CURVE or not, before a handshake is done
_ARRIVALS = select.EPOLLIN | select.EPOLLET


@dataclass(frozen=True)
class Limits:
    """Upper limits. `connection`: unread bytes of one connection. `total`: unread bytes of all
    connections. `silent`: number of connections with an unfinished handshake."""

    connection: int
    total: int
    silent: int = 512


@dataclass
class Connection:
    """An open connection. `counted_at`: time of the last look at it. `client`: the peer's routing
    id, empty until a message is read. `received`: bytes so far. `unread`: bytes of unread
    messages."""

    peer: object
    counted_at: float
    client: bytes = b""
    handshake_done: bool = False
    received: int = 0
    unread: float = 0.0
    shut_down: bool = False


class Traffic:
    """The connections of one bound socket, keyed by file descriptor, the oldest first. The kernel
    forgets a closed descriptor by itself. Connections without a finished handshake are `_silent`
    too."""

    def __init__(self, limits: Limits, *, encrypted: bool) -> None:
        self.limits, self.encrypted = limits, encrypted
        self.connections: dict[int, Connection] = {}
        self._silent: dict[int, Connection] = {}
        self._arrivals = select.epoll()
        self._read = set[int]()  # connections of which a message was read since the last check
        self._turns = deque[int]()  # connections that are yet to be looked at in this round
        self._total = 0.0  # unread bytes of all connections
        self._checked_at = time.monotonic()
        self._opened = 0  # connections since then

    def opened(self, connection: int) -> None:
        self.closed(connection)
        self._opened += 1
        with suppress(OSError), borrow_socket(connection) as found:  # it may be closed by now
            made = Connection(found.getpeername(), time.monotonic())
            with suppress(FileExistsError):
                self._arrivals.register(connection, _ARRIVALS)
            self.connections[connection] = self._silent[connection] = made

    def closed(self, connection: int) -> None:
        if (known := self.connections.pop(connection, None)) is not None:
            self._total -= known.unread
        self._silent.pop(connection, None)

    def close(self) -> None:
        self._arrivals.close()

    def mark_read(self, message: Received) -> None:
        """Subtracts a message's bytes from its connection's unread bytes."""
        if (known := self.connections.get(message.connection)) is not None:
            known.client = message.client
            size = sum(self._wire_bytes(len(frame)) for frame in message.frames)
            self._set_unread(known, known.unread - size)
            self._read.add(message.connection)

    def unread(self) -> int:
        return int(self._total)

    def check(self, now: float) -> Counter[str]:
        """Counts bytes, and shuts down connections that exceed a limit. Returns the number of
        shutdowns by cause."""
        causes: Counter[str] = Counter()
        passed = now - self._checked_at
        if passed < CHECK_S and self._opened <= self.limits.silent // 2:  # few new connections
            return causes
        self._checked_at, self._opened = now, 0
        for number in self._to_count():
            if (connection := self.connections.get(number)) is None:
                continue
            self._count(number, connection, now)
            if connection.handshake_done:
                self._silent.pop(number, None)
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

    def _to_count(self) -> Iterable[int]:
        """Takes the connections that this check looks at."""
        moved = [number for number, _ in self._arrivals.poll(0, len(self.connections) or 1)]
        read, self._read = self._read, set()
        if not self._turns:
            self._turns.extend(self.connections)
        in_turn = [self._turns.popleft() for _ in range(min(LOOKS, len(self._turns)))]
        return dict.fromkeys([*moved, *read, *self._silent, *in_turn])

    def _count(self, number: int, connection: Connection, now: float) -> None:
        passed, connection.counted_at = now - connection.counted_at, now
        try:
            received, sent, _ = tcp_counts(number)
        except OSError:  # closed by now
            connection.handshake_done = True
            return
        new = received - connection.received
        unread = connection.unread + new - HEARTBEAT_RATE * passed
        self._set_unread(connection, max(0.0, unread))
        connection.received = received
        connection.handshake_done |= sent > _GREETING[self.encrypted]

    def _set_unread(self, connection: Connection, unread: float) -> None:
        self._total += unread - connection.unread
        connection.unread = unread

    def _overdue(self) -> list[int]:
        silent = [number for number, c in self._silent.items() if not c.shut_down]
        return silent[: max(0, len(silent) - self.limits.silent)]

    def _shut_down(self, number: int, connection: Connection) -> bool:
        """Shuts down a connection. libzmq then closes it. Returns False if it was not open."""
        if connection.shut_down:
            return False
        connection.shut_down = True
        self._set_unread(connection, 0.0)
        try:
            with borrow_socket(number) as found:
                if found.getpeername() != connection.peer:  # the descriptor was reused
                    return False
                found.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed by now
            return False
        return True

    def _wire_bytes(self, size: int) -> int:
        """Returns how many bytes a frame takes on the wire (ZMTP 3.1; CurveZMQ adds 33 bytes)."""
        size += 33 * self.encrypted
        return size + (2 if size < 256 else 9)

"""Watches whether bytes move on a client's connection, so that a slow message is not taken for a
lost one.

A message arrives whole or not at all, however long it takes. The kernel knows more: how many bytes
have arrived, and how many of the sent bytes the peer has received. Heartbeats are fewer than BULK
bytes.
"""

import struct
from contextlib import suppress
from typing import Any

import zmq

from buffer.wire.tcp_counts import tcp_counts

BULK = 4096  # bytes between two looks that are more than heartbeats
RECENT_S = 2.0  # for which movement counts; several requests of a client look at other times
_EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_EVENT = struct.Struct("=Hi")  # of libzmq's monitor: kind, file descriptor or status


class Link:
    """The connection of one socket. Use it in the thread that uses the socket. `refused`: the
    status with which the service refused it (buffer.wire.sockets), 0 if it did not."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._events = socket, socket.get_monitor_socket(_EVENTS)
        self._connection, self.refused = -1, 0
        self._delivered = False  # a message, since the last look
        self._seen_total = self._seen_received = 0
        self._moved_at = self._received_at = float("-inf")

    def note_message(self) -> None:
        """Notes that a whole message has arrived."""
        self._delivered = True

    def arrives(self, now: float) -> bool:
        """Whether a large message is on its way to this client."""
        self._look(now)
        return now - self._received_at <= RECENT_S

    def moves(self, now: float) -> bool:
        """Whether a large message is on its way in either direction."""
        self._look(now)
        return now - self._moved_at <= RECENT_S

    def close(self) -> None:
        if not self._socket.closed:  # by the end of its context
            self._socket.disable_monitor()
        self._events.close(linger=0)

    def _look(self, now: float) -> None:
        while self._events.poll(0):
            kind, connection = _EVENT.unpack(self._events.recv_multipart()[0])
            if kind == zmq.EVENT_CONNECTED:
                self._connection, self._seen_total, self._seen_received = connection, 0, 0
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.refused = connection
            elif connection == self._connection:
                self._connection = -1
        if self._connection < 0:
            return
        with suppress(OSError):  # closed by now, or no Linux
            counts = tcp_counts(self._connection)
            total = counts.received + counts.acked
            if total >= self._seen_total + BULK:
                self._seen_total, self._moved_at = total, now
            if self._delivered:
                self._delivered, self._seen_received = False, counts.received
                self._received_at = float("-inf")
            elif counts.received >= self._seen_received + BULK:
                self._seen_received, self._received_at = counts.received, now

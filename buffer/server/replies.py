"""Answers on their way out: from the threads that make them, over the front, to slow networks.

    writer, reader ──deque, a byte to wake──► front ──ROUTER──► network
                └── owed: bytes of large answers that a client has not taken yet ──┘

What a client is owed is known until libzmq lets go of the bytes: when they are sent, or when the
connection ends, which a peer that stands still cannot prevent (heartbeats, buffer.server.service).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import zmq

from buffer.wire import messages
from buffer.wire.frames import LARGE, has_message, send_message
from r3l.errors import LimitExceeded, R3LError

OWED_LIMIT = 64 << 20  # bytes on their way to a client, beyond which it is not given more
Answer = tuple[bytes, str, list[bytes]]  # client, name of an error or "", frames


class Outbox:
    """Answers of several threads, and what each client is owed."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._name = f"inproc://outbox-{id(self)}"
        self._answers: deque[Answer] = deque()
        self._owed: Counter[bytes] = Counter()
        self._under_way: deque[tuple[Any, bytes, int]] = deque()  # tracker, client, bytes
        self._lock = threading.Lock()
        self.socket = context.socket(zmq.PULL)  # readable when there are answers
        self.socket.bind(self._name)

    def bell(self) -> Any:
        """A socket with which one thread rings after it has put answers in."""
        socket = self._context.socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.LINGER, 0)
        socket.connect(self._name)
        return socket

    def put(self, client: bytes, rid: str, result: Any, records: Sequence[bytes] = ()) -> None:
        """Add the answer to a request: a result and the records behind it, or an error. Then
        ring."""
        if isinstance(result, R3LError):
            self._answers.append(
                (client, type(result).__name__, messages.error_frames(rid, result))
            )
            return
        frames = messages.answer_frames(rid, result, records)
        if size := _large(frames):
            self._owe(client, size)
        self._answers.append((client, "", frames))

    def take(self) -> list[Answer]:
        """All answers there are."""
        while has_message(self.socket):
            self.socket.recv(zmq.NOBLOCK)
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def send(self, client: bytes, frames: list[bytes], socket: Any) -> None:
        """Hand an answer to the network; its large frames are owed until they are gone."""
        size = _large(frames)
        if not size:
            send_message(socket, [client, *frames])
            return
        try:
            parts = [client, *frames]
            tracker = socket.send_multipart(parts, zmq.NOBLOCK, copy=False, track=True)
        except zmq.ZMQError:
            self._owe(client, -size)
            raise
        self._under_way.append((tracker, client, size))

    def settle(self) -> None:
        """Cross out what has left."""
        for _ in range(len(self._under_way)):
            tracker, client, size = self._under_way.popleft()
            if tracker.done:
                self._owe(client, -size)
            else:
                self._under_way.append((tracker, client, size))

    def check_credit(self, client: bytes) -> None:
        """Raise LimitExceeded for a client that does not take what it asked for."""
        owed = self._owed[client]
        if owed > OWED_LIMIT:
            raise LimitExceeded(
                f"{owed} bytes of earlier answers are on their way to this client; beyond "
                f"{OWED_LIMIT} it is given no more",
                limit=OWED_LIMIT,
            )

    def _owe(self, client: bytes, size: int) -> None:
        with self._lock:
            self._owed[client] += size
            if self._owed[client] <= 0:
                del self._owed[client]


def _large(frames: list[bytes]) -> int:
    return sum(len(frame) for frame in frames if len(frame) >= LARGE)

"""The reply queue, and the number of unsent bytes of each client.

    writer, reader ──deque, an eventfd──► front ──ROUTER──► network
                └── unsent: bytes of large frames that libzmq has not released yet ───┘

A large frame counts as unsent until libzmq releases it, after sending it or losing the connection.
"""

import os
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import zmq

from buffer.wire import messages
from buffer.wire.sockets import LARGE, send_message
from r3l.errors import LimitExceeded, R3LError, SickResult
from r3l.records import Record

UNSENT_LIMIT = 64 << 20  # unsent bytes of a client beyond which the service sends it no groups


class EncodedReply(NamedTuple):
    """A reply as frames. `error`: the name under which an error is counted; "" without an error."""

    client: bytes
    error: str
    frames: list[bytes]


class Replies:
    """The reply queue, and the unsent bytes of each client. Threads may share it. The front polls
    the file descriptor `ready`."""

    def __init__(self) -> None:
        self._waiting: deque[EncodedReply] = deque()
        self._unsent: Counter[bytes] = Counter()
        self._tracked: deque[tuple[Any, bytes, int]] = deque()  # tracker, client, bytes
        self._lock = threading.Lock()
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake_front(self) -> None:
        """Wakes the front, which takes the queued replies."""
        os.eventfd_write(self.ready, 1)

    def put(
        self, client: bytes, rid: str, reply: Record | R3LError, groups: Sequence[bytes] = ()
    ) -> None:
        """Queues the reply to a request: a record followed by groups, or an error."""
        if isinstance(reply, R3LError):
            frames = messages.error_frames(rid, reply)
            name = reply.cause if isinstance(reply, SickResult) else type(reply).__name__
            self._waiting.append(EncodedReply(client, name, frames))
            return
        frames = messages.reply_frames(rid, reply, groups)
        if size := _large(frames):
            self._count(client, size)
        self._waiting.append(EncodedReply(client, "", frames))

    def take(self) -> list[EncodedReply]:
        """Takes the queued replies. Call it only when `ready` is readable."""
        os.eventfd_read(self.ready)
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def send(self, client: bytes, frames: list[bytes], socket: Any) -> None:
        """Sends a reply. Its large frames count as unsent until libzmq releases them."""
        size = _large(frames)
        if not size:
            send_message(socket, [client, *frames])
            return
        try:
            parts = [client, *frames]
            tracker = socket.send_multipart(parts, zmq.NOBLOCK, copy=False, track=True)
        except zmq.ZMQError:
            self._count(client, -size)
            raise
        self._tracked.append((tracker, client, size))

    def release_sent(self) -> None:
        """Subtracts released frames from the unsent bytes of their clients."""
        for _ in range(len(self._tracked)):
            tracker, client, size = self._tracked.popleft()
            if tracker.done:
                self._count(client, -size)
            else:
                self._tracked.append((tracker, client, size))

    def unsent(self) -> dict[bytes, int]:
        with self._lock:
            return dict(self._unsent)

    def check_unsent(self, client: bytes) -> None:
        """Raises LimitExceeded if the unsent bytes of a client exceed UNSENT_LIMIT."""
        unsent = self._unsent[client]
        if unsent > UNSENT_LIMIT:
            raise LimitExceeded(
                f"{unsent} bytes of replies to this client are unsent, more than the limit of "
                f"{UNSENT_LIMIT}; receive some replies first",
                limit=UNSENT_LIMIT,
            )

    def _count(self, client: bytes, size: int) -> None:
        with self._lock:
            self._unsent[client] += size
            if self._unsent[client] <= 0:
                del self._unsent[client]


def _large(frames: list[bytes]) -> int:
    return sum(len(frame) for frame in frames if len(frame) >= LARGE)

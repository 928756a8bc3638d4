"""The reply queue, and the number of unsent bytes of each client.

    writer, readers ──deque, an eventfd──► front ──ROUTER──► network
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
from buffer.wire.messages import ReceivedRequest
from buffer.wire.sockets import LARGE, Frame, send_message
from r3l.errors import LimitExceeded, R3LError, RecordError, SickResult
from r3l.records import Record

UNSENT_LIMIT = 64 << 20  # unsent bytes of a client beyond which the service sends it no groups


class EncodedReply(NamedTuple):
    """A reply as frames. `error`: the name under which an error is counted; "" without an error."""

    request: ReceivedRequest
    error: str
    frames: list[Frame]


class _Tracked(NamedTuple):
    """A large reply that libzmq has not released yet."""

    tracker: Any
    client: bytes
    size: int
    key: tuple[str, str]  # of its request


class Replies:
    """The reply queue, and the unsent bytes of each client. Threads may share it. The front polls
    the file descriptor `ready`."""

    def __init__(self) -> None:
        self._waiting: deque[EncodedReply] = deque()
        self._unsent: Counter[bytes] = Counter()
        self._tracked: deque[_Tracked] = deque()
        self._lock = threading.Lock()
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake_front(self) -> None:
        """Wakes the front, which takes the queued replies."""
        os.eventfd_write(self.ready, 1)

    def put(
        self, request: ReceivedRequest, reply: Record | R3LError, following: Sequence[Frame] = ()
    ) -> None:
        """Queues the reply to a request: a record and the frames behind it, or an error."""
        if isinstance(reply, R3LError):
            frames = messages.error_frames(request.rid, reply)
            name = reply.cause if isinstance(reply, SickResult) else type(reply).__name__
            self._waiting.append(EncodedReply(request, name, frames))
            return
        try:
            frames = messages.reply_frames(request.rid, reply, following)
        except RecordError as error:  # in a thread without which the service would end
            name = request.operation.name
            why = f"{name}: the reply cannot be sent: {error}; ask for less"
            self.put(request, LimitExceeded(why))
            return
        if size := _large(frames):
            self._count(request.client, size)
        self._waiting.append(EncodedReply(request, "", frames))

    def take(self) -> list[EncodedReply]:
        """Takes the queued replies. Call it only when `ready` is readable."""
        os.eventfd_read(self.ready)
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def send(self, reply: EncodedReply, client: bytes, socket: Any) -> None:
        """Sends a queued reply to `client`, which may not be the client that first sent the
        request. The reply's large frames count as unsent until libzmq releases them."""
        size = _large(reply.frames)
        parts = [client, *reply.frames]
        if not size:
            send_message(socket, parts)
            return
        if client != reply.request.client:
            self._count(reply.request.client, -size)
            self._count(client, size)
        try:
            tracker = socket.send_multipart(parts, zmq.NOBLOCK, copy=False, track=True)
        except zmq.ZMQError:
            self._count(client, -size)
            raise
        self._tracked.append(_Tracked(tracker, client, size, reply.request.key))

    def is_unsent(self, key: tuple[str, str], client: bytes) -> bool:
        """Whether the reply to a request is still on its way out to this client."""
        return any((each.key, each.client) == (key, client) for each in self._tracked)

    def release_sent(self) -> None:
        """Subtracts released frames from the unsent bytes of their clients."""
        for _ in range(len(self._tracked)):
            each = self._tracked.popleft()
            if each.tracker.done:
                self._count(each.client, -each.size)
            else:
                self._tracked.append(each)

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


def _large(frames: list[Frame]) -> int:
    return sum(len(frame) for frame in frames if len(frame) >= LARGE)

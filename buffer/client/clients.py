"""Clients of the buffer service. BufferClient blocks. AsyncBufferClient is for asyncio.

    with BufferClient("tcp://127.0.0.1:5555") as buffer:
        for group in buffer.query(state="trained", limit=10):
            print(group.task.task_id, group.rewards)

Every request has an id and a deadline. When a reply is late, the client sends the request again
with the same id on a new socket. The service carries out each request only once. After the deadline
the client raises BufferUnavailable.

When a client is closed, its waiting requests end with ClientClosed. Garbage collection closes a
client that is still open, and issues a ResourceWarning.
"""

import asyncio
import itertools
import logging
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import zmq

from buffer.client.calls import AsyncCalls, BlockingCalls, Call
from buffer.wire import messages
from buffer.wire.curve_keys import ClientKeys, load, present
from buffer.wire.sockets import Frame, has_message, new_socket, receive_message, send_message
from r3l.errors import BufferUnavailable, ClientClosed, RecordError
from r3l.run.process.endpoints import check_endpoint

FIRST_TRY_S = 1.0  # wait for a reply before asking again; doubles
LONGEST_TRY_S = 5.0
WARN_AFTER_S = 10.0
REPORT_S = 1.0  # between two calls of `silent`
CLOSE_CHECK_S = 0.1  # until a waiting request notices that another thread closes its client
QUEUE_FULL_S = 0.005  # wait before another try to send into a full queue
ASK_AGAIN_S, LONGEST_PAUSE_S, PAUSE = 0.05, 0.5, 10
"""Shortest and longest pause in seconds before a draw is requested again. Between these limits, the
pause is PAUSE times as long as the last reply took."""
REQUESTS_AT_ONCE = messages.REQUESTS_IN_FLIGHT // 2
"""Half of the service's limit, which also counts requests that the client abandoned."""
log = logging.getLogger(__name__)

T = TypeVar("T")


def _pause_s(asked: float, until: float) -> float:
    """Returns the pause before a draw is requested again. `asked`: time of the last request."""
    now = time.monotonic()
    pause = min(max(ASK_AGAIN_S, PAUSE * (now - asked)), LONGEST_PAUSE_S)
    return max(0.0, min(pause, until - now))


class _Client:
    """The shared part of both clients. While a reply is overdue, the client calls `silent`
    repeatedly. An exception from `silent` ends the request."""

    def __init__(
        self,
        endpoint: str,
        *,
        name: str = "a client",
        timeout_s: float = 10.0,
        keys: Path | str | None = None,
    ) -> None:
        """`timeout_s`: seconds until a missing reply raises BufferUnavailable. `keys`: a client's
        key file. Raises UserError if `endpoint` or `keys` is invalid."""
        self.endpoint = check_endpoint(endpoint, "buffer")
        self.name, self.timeout_s = name, timeout_s
        self._keys = load(ClientKeys, keys) if keys else None
        self._context = zmq.Context()
        self._socket: Any = None
        client = uuid.uuid4().hex
        self._rids = (f"{client}-{number}" for number in itertools.count())  # of this client alone
        self._closed = False
        self.silent: Callable[[str], object] = lambda line: None
        self._silent_since: float | None = None  # when the first missing reply was due
        self._reported_at, self._warn_s = 0.0, WARN_AFTER_S
        self._prepare()

    def _prepare(self) -> None:
        """Sets the attributes of the subclass."""
        raise NotImplementedError

    def __del__(self) -> None:
        """Closes a client that is still open. Does nothing at interpreter shutdown, when threads
        may still use the client."""
        opened = hasattr(self, "_closed") and not self._closed
        if opened and not sys.is_finalizing():
            warnings.warn(f"{self._who} was not closed", ResourceWarning,
                          stacklevel=2, source=self)  # fmt: skip
            self._context.destroy(linger=0)

    @property
    def _who(self) -> str:
        return f"{self.name} of the buffer at {self.endpoint}"

    def _connect(self) -> Any:
        socket = new_socket(
            self._context,
            zmq.DEALER,
            SNDHWM=256,
            RCVHWM=256,
            MAXMSGSIZE=messages.MESSAGE_LIMIT,
            RECONNECT_IVL=50,
            RECONNECT_IVL_MAX=1000,
            IPV6="[" in self.endpoint,
            HEARTBEAT_IVL=2000,
            HEARTBEAT_TIMEOUT=20000,
        )
        if self._keys is not None:
            present(socket, self._keys)
        socket.connect(self.endpoint)
        return socket

    def _refuse_closed(self, call: Call[Any]) -> None:
        if self._closed:
            raise ClientClosed(f"{self._who} was closed and cannot send {call.operation}")

    def _overdue(self, call: Call[Any], start: float) -> None:
        """Reports a missing reply. `start`: monotonic time of the request."""
        now = time.monotonic()
        if now < max(start, self._reported_at) + REPORT_S:
            return
        self._reported_at = now
        self._silent_since = self._silent_since or start
        silent_s = now - self._silent_since
        line = (
            f"{self.name} waits for the buffer at {self.endpoint}: no reply to {call.operation} "
            f"for {silent_s:.0f} s"
        )
        if silent_s > self._warn_s:
            self._warn_s = 2 * silent_s
            log.warning("%s", line)
        self.silent(line)

    def _replied(self) -> None:
        if self._silent_since is not None and self._warn_s > WARN_AFTER_S:
            silent_s = time.monotonic() - self._silent_since
            log.warning("the buffer at %s replies again, after %.0f s", self.endpoint, silent_s)
        self._silent_since, self._warn_s = None, WARN_AFTER_S

    def _unavailable(self, call: Call[Any], waited_s: float) -> BufferUnavailable:
        return BufferUnavailable(
            f"buffer at {self.endpoint}: {self.name} got no reply to {call.operation} in "
            f"{waited_s:.1f} s"
            f"{'' if self._keys else '; check that the buffer runs and needs no keys'}",
            endpoint=self.endpoint,
            waited_s=waited_s,
        )


class BufferClient(_Client, BlockingCalls):
    """Blocking client for several threads. Sends one request at a time."""

    def _prepare(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the connection. A request of another thread ends with ClientClosed."""
        self._closed = True
        with self._lock:  # only one thread at a time may touch a socket, also to close it
            self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, call: Call[T]) -> T:
        until = time.monotonic() + call.wait_s
        while True:
            with self._lock:
                asked = time.monotonic()
                result = call.read(self._exchange(call))
            if result is not None or time.monotonic() >= until:
                break
            time.sleep(_pause_s(asked, until))
        if result is None:
            call.gave_up()
        return result

    def _exchange(self, call: Call[Any]) -> list[Frame]:
        rid, start = next(self._rids), time.monotonic()
        patience, deadline = FIRST_TRY_S, start + self.timeout_s
        while (now := time.monotonic()) < deadline:
            self._refuse_closed(call)
            if self._socket is None:
                self._socket = self._connect()
            try:
                self._socket.send_multipart(call.frames(rid))
                frames = self._reply(call, rid, start, min(deadline, now + patience))
            except zmq.Again:  # the queue of a lost connection is full
                frames = None
            except BaseException:
                self._drop_socket()  # a reply may be on its way; never read it as another's
                raise
            if frames is not None:
                return frames
            self._drop_socket()
            patience = min(2 * patience, LONGEST_TRY_S)
        raise self._unavailable(call, time.monotonic() - start)

    def _reply(self, call: Call[Any], rid: str, start: float, until: float) -> list[Frame] | None:
        """Returns the reply to a request, or None if it does not arrive in time."""
        while not self._closed and (left := until - time.monotonic()) > 0:
            if not self._socket.poll(min(left, CLOSE_CHECK_S) * 1000):
                self._overdue(call, start)
            elif messages.reply_id(frames := receive_message(self._socket)) == rid:
                self._replied()
                return frames
        return None

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None


@dataclass(eq=False)
class _Waiting:
    """A request and the future of its reply. `start`: monotonic time of the request."""

    call: Call[Any]
    rid: str
    start: float = field(default_factory=time.monotonic)
    reply: asyncio.Future[Sequence[Frame]] = field(default_factory=asyncio.Future)


class AsyncBufferClient(_Client, AsyncCalls):
    """Client for one event loop. At most REQUESTS_AT_ONCE requests are in flight at a time."""

    def _prepare(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._turns = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def close(self) -> None:
        """Closes the connection. Waiting requests end with ClientClosed."""
        self._closed = True
        self._drop_socket()
        self._context.destroy(linger=0)
        for waiting in self._waiting.values():
            waiting.reply.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, call: Call[T]) -> T:
        until = time.monotonic() + call.wait_s
        while True:
            async with self._turns:
                waiting = _Waiting(call, next(self._rids))
                self._waiting[waiting.rid] = waiting
                try:
                    result = call.read(await self._exchange(waiting))
                finally:
                    del self._waiting[waiting.rid]
            if result is not None or time.monotonic() >= until:
                break
            await asyncio.sleep(_pause_s(waiting.start, until))
        if result is None:
            call.gave_up()
        return result

    async def _exchange(self, waiting: _Waiting) -> Sequence[Frame]:
        call = waiting.call
        patience, deadline = FIRST_TRY_S, waiting.start + self.timeout_s
        while (now := time.monotonic()) < deadline:
            used = await self._send(waiting)
            await asyncio.wait([waiting.reply], timeout=min(deadline - now, patience))
            self._refuse_closed(call)
            if waiting.reply.done():
                self._replied()
                return waiting.reply.result()
            self._overdue(call, waiting.start)
            if used is self._socket:
                self._drop_socket()
                await self._send_others(waiting)
            patience = min(2 * patience, LONGEST_TRY_S)
        raise self._unavailable(call, time.monotonic() - waiting.start)

    async def _send(self, waiting: _Waiting) -> Any:
        """Sends a request and returns the socket used. Gives up after FIRST_TRY_S seconds if the
        socket's queue stays full."""
        self._refuse_closed(waiting.call)
        if self._socket is None:
            self._socket = self._connect()
            asyncio.get_running_loop().add_reader(self._socket.fd, self._receive)
        socket = self._socket
        frames = waiting.call.frames(waiting.rid)
        until = time.monotonic() + FIRST_TRY_S
        while socket is self._socket and time.monotonic() < until:
            try:
                send_message(socket, frames)
                self._receive()  # the descriptor does not signal again for what has arrived
                break
            except zmq.Again:
                await asyncio.sleep(QUEUE_FULL_S)
        return socket

    async def _send_others(self, late: _Waiting) -> None:
        """Resends all waiting requests, except `late`, on a new socket."""
        for waiting in list(self._waiting.values()):
            if waiting is not late and not waiting.reply.done():
                await self._send(waiting)

    def _receive(self) -> None:
        """Hands each arrived reply to its request. Only the first reply to a request counts."""
        while self._socket is not None and has_message(self._socket):
            received = receive_message(self._socket)
            try:
                waiting = self._waiting.get(messages.reply_id(received))
            except RecordError:
                continue  # not a reply; the request's deadline decides
            if waiting is not None and not waiting.reply.done():
                waiting.reply.set_result(received)

    def _drop_socket(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fd)
            self._socket.close(linger=0)
            self._socket = None

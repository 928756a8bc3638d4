"""Clients of the buffer service. BufferClient blocks. AsyncBufferClient is for asyncio.

    with BufferClient("tcp://127.0.0.1:5555") as buffer:
        for group in buffer.query(state="trained", limit=10):
            print(group.task.task_id, group.rewards)

Every request has an id and a deadline. When a reply is late, the client sends the request again
with the same id. If it still hears nothing, it uses a new socket. Instead of sending a large
request again, it first inquires about it. The service carries out each request only once. After the
deadline the client raises BufferUnavailable. While bytes of a large message move, the deadline
restarts.

When a client is closed, its waiting requests end with ClientClosed. Garbage collection closes a
client that is still open, and issues a ResourceWarning.
"""

import asyncio
import errno
import itertools
import logging
import os
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import zmq

from buffer.client.call_results import Call, Rest
from buffer.client.calls import AsyncCalls, BlockingCalls
from buffer.client.exchange import (
    Ask,
    Done,
    Exchange,
    GiveUp,
    Patience,
    Peer,
    Replace,
    Report,
    Send,
    Wait,
)
from buffer.client.watched_link import Link
from buffer.wire import messages
from buffer.wire.curve_keys import ClientKeys, give_keys, load
from buffer.wire.sockets import Frame, has_message, new_socket, receive_message, send_message
from r3l.errors import BufferUnavailable, StoreError
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
FULL_DISK = os.strerror(errno.ENOSPC)
DISK_S = 1.0
"""Seconds until a request that found no room on the service's disk is sent again."""
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
    """The shared part of both clients. While a reply is overdue or an answer comes in many parts,
    the client calls `silent` repeatedly. An exception from `silent` ends the request."""

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
        self._peer = Peer(name, self.endpoint, bool(keys), REPORT_S, WARN_AFTER_S)
        self._context = zmq.Context()
        self._socket: Any = None
        self._link: Link | None = None  # of this socket
        client = uuid.uuid4().hex
        self._rids = (f"{client}-{number}" for number in itertools.count())  # of this client alone
        self.silent: Callable[[str], object] = lambda line: None
        self.waits_for_disk = False  # of a BufferClient: whether it asks again if the disk is full
        self._told = 0.0  # when a part of an answer was told last
        self._prepare()

    def _prepare(self) -> None:
        """Sets the attributes of the subclass."""
        raise NotImplementedError

    def __del__(self) -> None:
        """Closes a client that is still open. Does nothing at interpreter shutdown, when threads
        may still use the client."""
        opened = hasattr(self, "_context") and not self._peer.closed
        if opened and not sys.is_finalizing():
            warnings.warn(f"{self._peer} was not closed", ResourceWarning,
                          stacklevel=2, source=self)  # fmt: skip
            self._context.destroy(linger=0)

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
            give_keys(socket, self._keys)
        self._link = Link(socket)  # before it connects
        socket.connect(self.endpoint)
        return socket

    def _close_socket(self) -> None:
        if self._link is not None:
            self._link.close()
        self._socket.close(linger=0)
        self._socket = self._link = None

    def _arrives(self) -> bool:
        """Whether a large message is on its way to this client."""
        return self._looked_at(Link.arrives)

    def _moves(self) -> bool:
        """Whether a large message is on its way in either direction."""
        return self._looked_at(Link.moves)

    def _looked_at(self, look: Callable[[Link, float], bool]) -> bool:
        if self._link is None:
            return False
        found = look(self._link, time.monotonic())
        self._peer.refused = self._link.refused
        return found

    def _take(self) -> tuple[str, str, Sequence[Frame]]:
        """Receives a message that has arrived. Returns its address (buffer.wire.messages) too."""
        frames = receive_message(self._socket)
        if self._link is not None:
            self._link.note_message()
        return *messages.address(frames), frames

    def _begin(self, call: Call[Any]) -> Exchange:
        patience = Patience(self.timeout_s, FIRST_TRY_S, LONGEST_TRY_S, call.held_s)
        rid = next(self._rids)
        return Exchange(self._peer, call.operation, rid, patience, time.monotonic())

    def _tell(self, part: Rest) -> None:
        """Tells the caller, at most once per REPORT_S, that an answer is coming in parts."""
        if (now := time.monotonic()) >= self._told + REPORT_S:
            self._told = now
            self.silent(f"{self.name} receives from the buffer at {self.endpoint}: {part.line}")

    def _report(self, report: Report) -> None:
        if report.warn:
            log.warning("%s", report.line)
        self.silent(report.line)


class BufferClient(_Client, BlockingCalls):
    """Blocking client for several threads. Sends one request at a time."""

    def _prepare(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the connection. A request of another thread ends with ClientClosed."""
        self._peer.closed = True
        with self._lock:  # only one thread at a time may touch a socket, also to close it
            self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, call: Call[T]) -> T:
        until = time.monotonic() + call.wait_s
        while True:
            asked = time.monotonic()
            result = self._read_when_stored(call)
            while isinstance(result, Rest):
                self._tell(result)
                result = self._read(result.call)
            if result is not None or time.monotonic() >= until:
                break
            time.sleep(_pause_s(asked, until))
        if result is None:
            call.gave_up()
        return result

    def _read_when_stored(self, call: Call[T]) -> T | Rest:
        """Sends a request. With `waits_for_disk`, sends it again while the service's disk is full,
        which undid it; raises BufferUnavailable after `timeout_s` seconds of that."""
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                return self._read(call)
            except StoreError as error:
                if not self.waits_for_disk or FULL_DISK not in str(error):
                    raise
                if time.monotonic() >= until:
                    why = f"{self._peer} waited {self.timeout_s:g} s for room on its disk: {error}"
                    raise BufferUnavailable(why) from error
                self.silent(f"{self.name} waits until the buffer's disk has room: {error}")
            time.sleep(DISK_S)

    def _read(self, call: Call[T]) -> T | Rest:
        with self._lock:
            return call.read(self._exchange(call))

    def _exchange(self, call: Call[Any]) -> Sequence[Frame]:
        """Returns the reply to a request. Uses a new socket after an error: the reply may be on its
        way."""
        try:
            return self._carry_out(self._begin(call), call)
        except BaseException:
            self._drop_socket()
            raise

    def _carry_out(self, exchange: Exchange, call: Call[Any]) -> Sequence[Frame]:
        while True:
            match exchange.next(time.monotonic()):
                case Send(whole):
                    self._send(exchange, call, whole=whole)
                case Ask():
                    if self._arrives():
                        exchange.alive(time.monotonic())
                    else:
                        self._send(exchange, call, whole=False)
                case Wait(until):
                    self._receive(exchange, until)
                case Report() as report:
                    self._report(report)
                case Replace():
                    if self._moves():
                        exchange.alive(time.monotonic())
                    else:
                        self._drop_socket()
                case Done(frames, again):
                    if again:
                        log.warning("%s", again)
                    return frames
                case GiveUp(error):
                    raise error

    def _send(self, exchange: Exchange, call: Call[Any], *, whole: bool) -> None:
        if self._socket is None:
            self._socket = self._connect()
        try:
            self._socket.send_multipart(call.frames(exchange.rid, whole=whole))
        except zmq.Again:  # the queue of a lost connection is full
            exchange.stuck(time.monotonic())

    def _receive(self, exchange: Exchange, until: float) -> None:
        """Hands the next message to the exchange. Waits for it at most CLOSE_CHECK_S."""
        wait_s = min(max(until - time.monotonic(), 0.0), CLOSE_CHECK_S)
        if not self._socket.poll(wait_s * 1000):
            return
        try:
            message = self._take()
        except zmq.Again:
            exchange.stuck(time.monotonic())
        else:
            exchange.received(*message, time.monotonic())

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._close_socket()


@dataclass(eq=False)
class _Waiting:
    """A request of an AsyncBufferClient. `used`: the socket on which it was sent last. `news`: a
    message for it has arrived, or the client was closed."""

    call: Call[Any]
    exchange: Exchange
    used: Any = None
    news: asyncio.Event = field(default_factory=asyncio.Event)


class AsyncBufferClient(_Client, AsyncCalls):
    """Client for one event loop. At most REQUESTS_AT_ONCE requests are in flight at a time."""

    def _prepare(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._turns = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def close(self) -> None:
        """Closes the connection. Waiting requests end with ClientClosed."""
        self._peer.closed = True
        self._drop_socket()
        self._context.destroy(linger=0)
        for waiting in self._waiting.values():
            waiting.news.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, call: Call[T]) -> T:
        until = time.monotonic() + call.wait_s
        while True:
            asked = time.monotonic()
            result = await self._read(call)
            while isinstance(result, Rest):
                self._tell(result)
                result = await self._read(result.call)
            if result is not None or time.monotonic() >= until:
                break
            await asyncio.sleep(_pause_s(asked, until))
        if result is None:
            call.gave_up()
        return result

    async def _read(self, call: Call[T]) -> T | Rest:
        async with self._turns:
            waiting = _Waiting(call, self._begin(call))
            self._waiting[waiting.exchange.rid] = waiting
            try:
                return call.read(await self._exchange(waiting))
            finally:
                del self._waiting[waiting.exchange.rid]

    async def _exchange(self, waiting: _Waiting) -> Sequence[Frame]:
        """Returns the reply to a request."""
        while True:
            match waiting.exchange.next(time.monotonic()):
                case Send(whole):
                    await self._send(waiting, whole=whole)
                case Ask():
                    if self._arrives():
                        waiting.exchange.alive(time.monotonic())
                    else:
                        await self._send(waiting, whole=False)
                case Wait(until):
                    waiting.news.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(until - time.monotonic()):
                            await waiting.news.wait()
                case Report() as report:
                    self._report(report)
                case Replace():
                    if self._moves():
                        waiting.exchange.alive(time.monotonic())
                    else:
                        await self._replace(waiting)
                case Done(frames, again):
                    if again:
                        log.warning("%s", again)
                    return frames
                case GiveUp(error):
                    raise error

    async def _send(self, waiting: _Waiting, *, whole: bool) -> None:
        """Sends a request. Gives up after FIRST_TRY_S seconds if the socket's queue stays full."""
        if self._socket is None:
            self._socket = self._connect()
            asyncio.get_running_loop().add_reader(self._socket.fd, self._receive)
        waiting.used = socket = self._socket
        frames = waiting.call.frames(waiting.exchange.rid, whole=whole)
        until = time.monotonic() + FIRST_TRY_S
        while socket is self._socket:
            try:
                send_message(socket, frames)
                self._receive()  # the descriptor does not signal again for what has arrived
                break
            except zmq.Again:
                if time.monotonic() > until:
                    waiting.exchange.stuck(time.monotonic())
                    break
                await asyncio.sleep(QUEUE_FULL_S)

    async def _replace(self, late: _Waiting) -> None:
        """Drops the socket of a late request. Sends the other waiting requests on a new one."""
        if late.used is not self._socket:
            return
        self._drop_socket()
        for waiting in list(self._waiting.values()):
            if waiting is not late and not waiting.exchange.replied and not self._peer.closed:
                waiting.exchange.inquired()
                await self._send(waiting, whole=False)

    def _receive(self) -> None:
        """Hands each arrived reply to its request."""
        while self._socket is not None and has_message(self._socket):
            rid, sign, frames = self._take()
            if waiting := self._waiting.get(rid):
                waiting.exchange.received(rid, sign, frames, time.monotonic())
                waiting.news.set()

    def _drop_socket(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fd)
            self._close_socket()

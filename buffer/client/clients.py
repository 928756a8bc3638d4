"""Clients of the buffer service: one that blocks, one for asyncio, the same verbs.

    with BufferClient("tcp://127.0.0.1:5555") as buffer:
        for group in buffer.query(state="trained", limit=10):
            print(group.task.task_id, group.rewards)

Every request has an id and a deadline. When an answer is late the request is sent again, same
id, on a new socket, as often as the deadline allows; the service answers a known id as it did
before, so nothing happens twice. After the deadline: BufferUnavailable.

A request under way when its client is closed ends with ClientClosed. A client that nobody closed
is closed when it is collected, with a ResourceWarning; one that lives to the end of its process
keeps no process from ending.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import zmq

from buffer.client import calls
from buffer.client.calls import Call
from buffer.wire import messages
from buffer.wire.curve_keys import ClientKeys, load, present
from buffer.wire.frames import Frame, has_message, receive_message, send_message
from r3l.endpoints import check_endpoint
from r3l.errors import BufferUnavailable, ClientClosed, RecordError

FIRST_TRY_S = 1.0  # wait for an answer before asking again; doubles
LONGEST_TRY_S = 5.0
LOOK_S = 0.1  # until a request under way notices that its client is to be closed
FULL_S = 0.005  # wait before another try to send into a full queue
UNDER_WAY = messages.CREDIT // 2  # the other half is for requests that were given up

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _blocking(build: Callable[P, Call[T]]) -> Callable[Concatenate[BufferClient, P], T]:
    @functools.wraps(build)
    def verb(self: BufferClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._ask(build(*args, **kwargs))

    return _as_method(verb)


def _awaited(
    build: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncBufferClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(build)
    async def verb(self: AsyncBufferClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._ask(build(*args, **kwargs))

    return _as_method(verb)


def _as_method(verb: F) -> F:
    """Give `help()` the signature of a method."""
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    known = inspect.signature(verb)
    signature = known.replace(parameters=[itself, *known.parameters.values()])
    setattr(verb, "__signature__", signature)  # noqa: B010 - functions do not declare it
    return verb


class BufferClient:
    """Blocking client; threads may share it, one request at a time, and any of them close it.

    `timeout_s`: seconds until a request without an answer raises BufferUnavailable.
    `keys`: the client's key file, where the service asks for one (buffer.wire.curve_keys).
    Raises UserError for an endpoint that is none and a key file that cannot be read.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        name: str = "",
        timeout_s: float = 10.0,
        keys: Path | str | None = None,
    ) -> None:
        self.endpoint = check_endpoint(endpoint, "buffer")
        self.name, self.timeout_s = name, timeout_s
        self._keys = load(ClientKeys, keys) if keys else None
        self._context = zmq.Context()
        self._socket: Any = None
        self._rids = _request_ids()
        self._lock = threading.Lock()
        self._closed = False

    add_tasks = _blocking(calls.add_tasks)
    lease = _blocking(calls.lease)
    put = _blocking(calls.put)
    resolve = _blocking(calls.resolve)
    renew = _blocking(calls.renew)
    release = _blocking(calls.release)
    draw = _blocking(calls.draw)
    release_draws = _blocking(calls.release_draws)
    commit = _blocking(calls.commit)
    discard = _blocking(calls.discard)
    limit_staleness = _blocking(calls.limit_staleness)
    set_version = _blocking(calls.set_version)
    history = _blocking(calls.history)
    query = _blocking(calls.query)
    ledger = _blocking(calls.ledger)
    get = _blocking(calls.get)
    evict = _blocking(calls.evict)
    stats = _blocking(calls.stats)

    def close(self) -> None:
        """Close the connection; a request that another thread makes ends first (ClientClosed)."""
        self._closed = True
        with self._lock:  # only one thread at a time may touch a socket, also to close it
            self._context.destroy(linger=0)

    def __del__(self) -> None:
        _warn_unclosed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, call: Call[T]) -> T:
        with self._lock:
            return calls.read_answer(call, self._exchange(call))

    def _receive(self, seconds: float) -> list[Frame] | None:
        """The next answer, if one arrives in time."""
        until = time.monotonic() + seconds
        while not self._closed and (left := until - time.monotonic()) > 0:
            if self._socket.poll(min(left, LOOK_S) * 1000):
                return receive_message(self._socket)
        return None

    def _exchange(self, call: Call[Any]) -> list[Frame]:
        rid, start = next(self._rids), time.monotonic()
        deadline, patience = start + call.hold_s + self.timeout_s, FIRST_TRY_S
        while (now := time.monotonic()) < deadline:
            _refuse_closed(self, call)
            if self._socket is None:
                self._socket = _connect(self._context, self.endpoint, self._keys)
            try:
                self._socket.send_multipart(call.frames(rid, now - start))
                until = min(deadline, now + patience)
                while (frames := self._receive(until - time.monotonic())) is not None:
                    if calls.answer_id(frames) == rid:
                        return frames
            except BaseException:
                self._drop_socket()  # an answer may be under way; never read it as another's
                raise
            self._drop_socket()
            patience = min(2 * patience, LONGEST_TRY_S)
        raise _unavailable(self, call, time.monotonic() - start)

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None


class AsyncBufferClient:
    """Client for one event loop; any number of requests may be made at the same time, those
    beyond UNDER_WAY wait for their turn.

    `timeout_s`: seconds until a request without an answer raises BufferUnavailable.
    `keys`: the client's key file, where the service asks for one (buffer.wire.curve_keys).
    Raises UserError for an endpoint that is none and a key file that cannot be read.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        name: str = "",
        timeout_s: float = 10.0,
        keys: Path | str | None = None,
    ) -> None:
        self.endpoint = check_endpoint(endpoint, "buffer")
        self.name, self.timeout_s = name, timeout_s
        self._keys = load(ClientKeys, keys) if keys else None
        self._context = zmq.Context()
        self._rids = _request_ids()
        self._waiting: dict[str, _Waiting] = {}
        self._turns = asyncio.Semaphore(UNDER_WAY)
        self._socket: Any = None
        self._closed = False

    add_tasks = _awaited(calls.add_tasks)
    lease = _awaited(calls.lease)
    put = _awaited(calls.put)
    resolve = _awaited(calls.resolve)
    renew = _awaited(calls.renew)
    release = _awaited(calls.release)
    draw = _awaited(calls.draw)
    release_draws = _awaited(calls.release_draws)
    commit = _awaited(calls.commit)
    discard = _awaited(calls.discard)
    limit_staleness = _awaited(calls.limit_staleness)
    set_version = _awaited(calls.set_version)
    history = _awaited(calls.history)
    query = _awaited(calls.query)
    ledger = _awaited(calls.ledger)
    get = _awaited(calls.get)
    evict = _awaited(calls.evict)
    stats = _awaited(calls.stats)

    async def close(self) -> None:
        """Close the connection; requests under way end with ClientClosed."""
        self._closed = True
        self._drop_socket()
        self._context.destroy(linger=0)
        for waiting in self._waiting.values():
            waiting.wake()

    def __del__(self) -> None:
        _warn_unclosed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, call: Call[T]) -> T:
        async with self._turns:
            return await self._ask_now(call)

    async def _ask_now(self, call: Call[T]) -> T:
        waiting = _Waiting(call, next(self._rids))
        deadline, patience = waiting.start + call.hold_s + self.timeout_s, FIRST_TRY_S
        self._waiting[waiting.rid] = waiting
        try:
            while (now := time.monotonic()) < deadline:
                used = await self._send(waiting)
                answer = await waiting.within(min(deadline - now, patience))
                if answer is not None:
                    return calls.read_answer(call, answer)
                if used is self._socket:
                    self._drop_socket()
                    await self._send_others(waiting)
                patience = min(2 * patience, LONGEST_TRY_S)
        finally:
            del self._waiting[waiting.rid]
        raise _unavailable(self, call, time.monotonic() - waiting.start)

    async def _send(self, waiting: _Waiting) -> Any:
        """Send a request; returns the socket it went to, or was to go to: one with a full queue
        is given up like one without answers. Raises ClientClosed."""
        _refuse_closed(self, waiting.call)
        if self._socket is None:
            self._socket = _connect(self._context, self.endpoint, self._keys)
            asyncio.get_running_loop().add_reader(self._socket.fd, self._receive)
        socket = self._socket
        frames = waiting.call.frames(waiting.rid, time.monotonic() - waiting.start)
        until = time.monotonic() + FIRST_TRY_S
        while socket is self._socket and time.monotonic() < until:
            try:
                send_message(socket, frames)
                self._receive()  # the descriptor does not speak twice of what came meanwhile
                break
            except zmq.Again:
                await asyncio.sleep(FULL_S)
        return socket

    async def _send_others(self, late: _Waiting) -> None:
        """On a new socket, repeat what else was asked on the one given up."""
        for waiting in list(self._waiting.values()):
            if waiting is not late and waiting.answer is None:
                await self._send(waiting)

    def _receive(self) -> None:
        """Hand every answer that has arrived to whom it belongs."""
        while self._socket is not None and has_message(self._socket):
            received = receive_message(self._socket)
            try:
                waiting = self._waiting.get(calls.answer_id(received))
            except RecordError:
                continue  # not an answer; its sender's deadline decides
            if waiting is not None:
                waiting.arrived(received)

    def _drop_socket(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fd)
            self._socket.close(linger=0)
            self._socket = None


class _Waiting:
    """A request under way."""

    def __init__(self, call: Call[Any], rid: str) -> None:
        self.call, self.rid, self.start = call, rid, time.monotonic()
        self.answer: Sequence[Frame] | None = None
        self._woken: asyncio.Future[None] | None = None

    def arrived(self, frames: Sequence[Frame]) -> None:
        """Take the answer; the first one counts."""
        if self.answer is None:
            self.answer = frames
            self.wake()

    async def within(self, seconds: float) -> Sequence[Frame] | None:
        """The answer, if it arrives in time."""
        if self.answer is None:
            loop = asyncio.get_running_loop()
            self._woken = loop.create_future()
            alarm = loop.call_later(seconds, self.wake)
            try:
                await self._woken
            finally:
                alarm.cancel()
        return self.answer

    def wake(self) -> None:
        """End the wait for an answer."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


def _request_ids() -> Iterator[str]:
    """Ids that no other client has, nor this one before."""
    client = uuid.uuid4().hex
    return (f"{client}-{number}" for number in itertools.count())


def _connect(context: Any, endpoint: str, keys: ClientKeys | None) -> Any:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, 256)
    socket.set(zmq.RCVHWM, 256)
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 1000)
    socket.set(zmq.HEARTBEAT_IVL, 2000)
    socket.set(zmq.HEARTBEAT_TIMEOUT, 20000)
    if keys is not None:
        present(socket, keys)
    socket.connect(endpoint)
    return socket


def _refuse_closed(client: BufferClient | AsyncBufferClient, call: Call[Any]) -> None:
    if client._closed:
        raise ClientClosed(f"{client.name or 'a client'} of the buffer at {client.endpoint} was "
                           f"closed: no {call.op}")  # fmt: skip


def _warn_unclosed(client: BufferClient | AsyncBufferClient) -> None:
    """Close a client that is collected and was forgotten. Not where the interpreter ends: there
    its threads may still be at work with it, and the system closes what is left."""
    opened = hasattr(client, "_closed") and not client._closed
    if opened and not sys.is_finalizing():
        who = client.name or "a client"
        warnings.warn(f"{who} of the buffer at {client.endpoint} was not closed", ResourceWarning,
                      stacklevel=3, source=client)  # fmt: skip
        client._context.destroy(linger=0)


def _unavailable(
    client: BufferClient | AsyncBufferClient, call: Call[Any], waited_s: float
) -> BufferUnavailable:
    who = client.name or "a client"
    return BufferUnavailable(
        f"buffer at {client.endpoint}: no answer to {call.op} from {who} in {waited_s:.1f} s"
        f"{'' if client._keys else '; is it served there, and without keys?'}",
        endpoint=client.endpoint,
        waited_s=waited_s,
    )

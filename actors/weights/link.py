"""A connection to the weight publisher: sends requests, receives replies, within limits."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import zmq
import zmq.asyncio

from buffer.wire import curve_keys
from buffer.wire.sockets import new_socket
from r3l.codec import pack, unpack
from r3l.errors import PublisherUnavailable, RecordError, WeightsError, from_wire
from r3l.run.process.memory import private_bytes
from r3l.weights.keyed_sums import is_genuine, keyed_sum
from r3l.weights.manifest import MANIFEST_LIMIT

REQUESTS_IN_FLIGHT = 4
"""The most range requests that wait for a reply at the same time."""
LOOK_S = 0.05
"""Seconds between two checks of this process's memory while it waits for a reply."""
REPLY_MEMORY = 256 << 20
"""Bytes that this process may grow by while it waits: several times REQUESTS_IN_FLIGHT chunks."""


class Link:
    """Connects to `endpoint` with the first request. `keys`: encrypts with them. `key`: the key of
    keyed checksums (r3l.weights.keyed_sums), if the publisher asks for them."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        endpoint: str,
        timeout_s: float,
        *,
        keys: curve_keys.ClientKeys | None = None,
        key: bytes | None = None,
    ) -> None:
        self.endpoint, self.timeout_s = endpoint, timeout_s
        self.socket: zmq.asyncio.Socket | None = None
        self.key = key
        self._context, self._keys = context, keys
        self._rids: Iterator[int] = itertools.count()

    @property
    def encrypted(self) -> bool:
        """Whether only the publisher can read the requests, and only this process the replies."""
        return self._keys is not None

    async def send(self, request: dict[str, Any]) -> int:
        """Sends a request and returns its id. Raises PublisherUnavailable."""
        if self.socket is None:
            self.socket = self._connect()
        rid = next(self._rids)
        packed = pack(request | {"rid": rid})
        frames = [packed] if self.key is None else [packed, keyed_sum(self.key, [packed])]
        try:
            await self.socket.send_multipart(frames)
        except zmq.Again:
            raise PublisherUnavailable(
                f"weights {self.endpoint}: a request could not be sent", cause="no_reply"
            ) from None
        return rid

    async def receive(self) -> tuple[dict[str, Any], list[memoryview]]:
        """Receives a reply: its header and its other frames. Raises PublisherUnavailable if no
        reply comes, WeightsError if it is malformed, forged or an error."""
        assert self.socket is not None
        await self._await_reply(self.socket)
        frames = [frame.buffer for frame in await self.socket.recv_multipart(copy=False)]
        if self.key is not None:
            claimed = bytes(frames.pop()) if len(frames) > 1 else b""
            if not is_genuine(self.key, frames, claimed):
                raise WeightsError(
                    f"weights {self.endpoint}: a reply has the wrong keyed checksum, so it was "
                    "changed on its way",
                    cause="forged",
                )
        try:
            header = unpack(bytes(frames[0]))
        except RecordError as error:
            raise WeightsError(f"weights: {error}", cause="malformed") from error
        if "error" in header:
            raise WeightsError(
                f"weights: the publisher refused a request: {from_wire(header)}", cause="refused"
            )
        if type(header.get("rid")) is not int:
            raise WeightsError("weights: a reply has no request id", cause="malformed")
        return header, frames[1:]

    def disconnect(self) -> None:
        """Closes the connection; the next request opens a new one."""
        if self.socket is not None:
            self.socket.close(linger=0)
            self.socket = None

    def _connect(self) -> zmq.asyncio.Socket:
        socket: zmq.asyncio.Socket = new_socket(
            self._context,
            zmq.DEALER,
            RCVHWM=2 * REQUESTS_IN_FLIGHT,
            MAXMSGSIZE=MANIFEST_LIMIT,  # of a frame
            RECONNECT_IVL=50,
            RECONNECT_IVL_MAX=1000,
            IPV6="[" in self.endpoint,
        )
        if self._keys is not None:
            curve_keys.give_keys(socket, self._keys)
        socket.connect(self.endpoint)
        return socket

    async def _await_reply(self, socket: zmq.asyncio.Socket) -> None:
        """Waits for a reply. Raises WeightsError if an incomplete reply takes too much memory.
        libzmq itself would buffer any number of frames."""
        until, before = time.monotonic() + self.timeout_s, private_bytes()
        while not await socket.poll(LOOK_S * 1000):
            if private_bytes() - before > REPLY_MEMORY:
                raise WeightsError(
                    f"weights {self.endpoint}: a reply has more than {REPLY_MEMORY} bytes and is "
                    "still incomplete",
                    cause="too_large",
                )
            if time.monotonic() > until:
                raise PublisherUnavailable(
                    f"weights {self.endpoint}: no reply for {self.timeout_s:g} s", cause="no_reply"
                )

"""Keeps an engine on the newest weights: polls for weights, fetches them during generation.

poll `latest` ─► newer? ─► request the chunks that differ, by ranges, a few in flight
                               └► whole or patches, checked ─► staged set ─► load (actors.engine)

Over a slow link a set may take minutes. So each deadline applies only to the next range, received
bytes survive a broken connection, and the publisher is asked to keep the version meanwhile.
"""

import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from xxhash import xxh3_64_intdigest

from actors.weights.chunk_ranges import ChunkRange, ChunkRanges, CompleteChunk, RangeSize
from actors.weights.staging import UNKNOWN, StagedWeights
from buffer.wire import curve_keys
from buffer.wire.sockets import new_socket
from r3l.codec import pack, unpack
from r3l.errors import PublisherUnavailable, RecordError, WeightsError, from_wire
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.process.endpoints import check_endpoint
from r3l.run.process.memory import private_bytes
from r3l.weights.manifest import MANIFEST_LIMIT, Manifest

log = logging.getLogger(__name__)

REQUESTS_IN_FLIGHT = 4
"""The most range requests that wait for a reply at the same time."""
STAGING = 2
"""The most chunks that are checked and staged at the same time."""
LOOK_S = 0.05
"""Seconds between two checks of this process's memory while it waits for a reply."""
REPLY_MEMORY = 256 << 20
"""Bytes that this process may grow by while it waits: several times REQUESTS_IN_FLIGHT chunks."""
NO_LONGER_SERVED = "no_longer_served"
LATE_S = 10.0
"""A fetch that has taken this many seconds asks the publisher to keep the version."""


class WeightSubscriber:
    """Fetches weights from one publisher. A fetch fails if no bytes arrive for `timeout_s`.

    `keys` is the client's key file, if the publisher requires a key. `set_limit` is the largest
    possible size of a set of this model, in bytes. `metrics` counts received bytes. `loaded` is the
    (origin, version) that the engine holds, or None before the first load.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_s: float = 10.0,
        keys: Path | None = None,
        set_limit: int = sys.maxsize,
    ) -> None:
        self.endpoint, self.timeout_s = check_endpoint(endpoint, "weights"), timeout_s
        self.set_limit = set_limit
        self.metrics = ActorMetrics()
        self.loaded: tuple[str, int] | None = None
        self.staged: StagedWeights | None = None
        self._ranges, self._range_size = ChunkRanges(), RangeSize()
        self._late = False  # whether versions are replaced sooner than this link carries one
        self._keys = curve_keys.load(curve_keys.ClientKeys, keys) if keys else None
        self._rids = itertools.count()
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None

    async def latest(self) -> Manifest | None:
        """Returns the newest manifest, or None if the engine is up to date. Raises
        PublisherUnavailable, WeightsError."""
        origin, have = self.loaded or ("", UNKNOWN)
        try:
            rid = await self._send({"op": "latest", "origin": origin, "have": have})
            header, payload = await self._receive()
            if header.get("rid") != rid:
                raise WeightsError("weights: got the reply to another request", cause="out_of_step")
        except BaseException:
            self.disconnect()  # a late reply must not reach the next request
            raise
        try:
            if payload and header.get("sum") != xxh3_64_intdigest(payload[0]):
                raise WeightsError("weights: the manifest is damaged", cause="checksum")
            manifest = Manifest.from_wire(unpack(payload[0], MANIFEST_LIMIT)) if payload else None
        except RecordError as error:
            raise WeightsError(f"weights: {error}", cause="malformed") from error
        self._late = self._late and manifest is not None
        if manifest is not None and manifest.layout.total_bytes > self.set_limit:
            raise WeightsError(
                f"weights {manifest.version}: the set has {manifest.layout.total_bytes} bytes; "
                f"sets of this model have at most {self.set_limit}",
                cause="too_large",
            )
        return manifest

    async def fetch(self, manifest: Manifest) -> StagedWeights:
        """Stages the missing chunks of a set. After a failure, the next fetch of the version
        continues where this one stopped. Raises WeightsError if a chunk is damaged or no longer
        served, and PublisherUnavailable if no bytes arrive."""
        staged, began = self._stage(manifest), time.monotonic()
        self._ranges.begin(manifest, staged)
        requested: dict[int, ChunkRange] = {}
        staging: set[asyncio.Task[None]] = set()
        try:
            await self._request_more(staged, manifest, requested)
            while requested:
                asked = time.monotonic()
                header, payload = await self._receive()
                self._late = self._late or time.monotonic() > began + LATE_S
                wanted = requested.pop(header.get("rid", UNKNOWN), None)
                self._check_reply(header, manifest, wanted)
                assert wanted is not None
                nbytes = sum(map(len, payload))
                if header.get("full"):
                    self.metrics.weights_full_bytes += nbytes
                else:
                    self.metrics.weights_patch_bytes += nbytes
                self._range_size.received(wanted, nbytes, time.monotonic() - asked)
                have = staged.versions[wanted.chunk]
                complete = self._ranges.add(wanted, have, header, payload)
                await self._request_more(staged, manifest, requested)
                if complete is not None:
                    await _until_fewer(staging, STAGING)
                    store = asyncio.to_thread(self._store, staged, manifest, complete)
                    staging.add(asyncio.create_task(store))
            await _until_fewer(staging, 1)
        except BaseException as error:
            self.disconnect()  # replies under way must not reach the next request
            if isinstance(error, PublisherUnavailable):
                self._range_size.stalled()
            raise
        finally:  # threads cannot be cancelled
            await asyncio.gather(*staging, return_exceptions=True)
        return staged

    def disconnect(self) -> None:
        """Closes the connection; the next request opens a new one."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    def close(self) -> None:
        self.disconnect()
        self._context.destroy(linger=0)
        if self.staged is not None:
            self.staged.close()
            self.staged = None

    def _stage(self, manifest: Manifest) -> StagedWeights:
        """Returns the staged set to fill. Forgets chunks that came from another publisher."""
        old = self.staged
        if old is None or old.layout != manifest.layout:
            if old is not None:
                old.close()
            self.staged = StagedWeights(manifest.layout, manifest.origin)
            return self.staged
        if old.origin != manifest.origin:
            old.origin, old.versions = manifest.origin, [UNKNOWN] * manifest.layout.num_chunks
        return old

    def _store(self, staged: StagedWeights, manifest: Manifest, complete: CompleteChunk) -> None:
        if complete.full:
            staged.replace(complete.chunk, manifest, complete.frames[0])
        else:
            staged.patch(complete.chunk, manifest, complete.frames)

    def _check_reply(
        self, header: dict[str, Any], manifest: Manifest, wanted: ChunkRange | None
    ) -> None:
        if header.get("gone"):
            self._late = True
            raise WeightsError(
                f"weights {manifest.version}: no longer served", cause=NO_LONGER_SERVED
            )
        got = (header.get("version"), header.get("index"))
        if wanted is None or got != (manifest.version, wanted.chunk):
            raise WeightsError("weights: got the reply to another request", cause="out_of_step")

    async def _request_more(
        self, staged: StagedWeights, manifest: Manifest, requested: dict[int, ChunkRange]
    ) -> None:
        """Asks for missing ranges until REQUESTS_IN_FLIGHT requests are waiting for a reply."""
        while len(requested) < REQUESTS_IN_FLIGHT and (
            wanted := self._ranges.next(self._range_size.size)
        ):
            request = {
                "op": "chunk",
                "origin": manifest.origin,
                "version": manifest.version,
                "index": wanted.chunk,
                "have": staged.versions[wanted.chunk],
                "at": wanted.at,
                "size": wanted.size,
                "keep": self._late,
            }
            requested[await self._send(request)] = wanted

    async def _send(self, request: dict[str, Any]) -> int:
        if self._socket is None:
            self._socket = self._connect()
        rid = next(self._rids)
        try:
            await self._socket.send(pack(request | {"rid": rid}))
        except zmq.Again:
            raise PublisherUnavailable(
                f"weights {self.endpoint}: a request could not be sent", cause="no_reply"
            ) from None
        return rid

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
            curve_keys.present(socket, self._keys)
        socket.connect(self.endpoint)
        return socket

    async def _receive(self) -> tuple[dict[str, Any], list[memoryview]]:
        assert self._socket is not None
        await self._await_reply(self._socket)
        frames = await self._socket.recv_multipart(copy=False)
        try:
            header = unpack(bytes(frames[0].buffer))
        except RecordError as error:
            raise WeightsError(f"weights: {error}", cause="malformed") from error
        if "error" in header:
            raise WeightsError(
                f"weights: the publisher refused a request: {from_wire(header)}", cause="refused"
            )
        if type(header.get("rid")) is not int:
            raise WeightsError("weights: a reply has no request id", cause="malformed")
        return header, [frame.buffer for frame in frames[1:]]

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


async def _until_fewer(tasks: set[asyncio.Task[None]], limit: int) -> None:
    """Waits until fewer than `limit` tasks are running. Raises the error of a failed task."""
    while len(tasks) >= limit:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks -= done
        for task in done:
            task.result()


Load = Callable[[str, Manifest], Awaitable[float]]
"""Loads a staged set into an engine; returns the pause in seconds."""


async def follow(subscriber: WeightSubscriber, load: Load, *, every_s: float = 0.1) -> None:
    """Keeps the engine on the newest weights until cancelled.

    Generation continues during a fetch. A failed fetch is counted and repeated. If several versions
    are published during a fetch or load, only the newest of them is fetched.
    """
    metrics, manifest = subscriber.metrics, None
    while True:
        try:
            manifest = manifest or await subscriber.latest()
            if manifest is not None:
                began = time.monotonic()
                staged = await subscriber.fetch(manifest)
                metrics.weights_fetch_s = time.monotonic() - began
                subscriber.loaded = None
                metrics.weights_pause_s = await load(staged.path, manifest)
                subscriber.loaded = (manifest.origin, manifest.version)
                metrics.weights_updates += 1
                log.info("weights %d: fetch %.3f s, pause %.3f s", manifest.version,
                         metrics.weights_fetch_s, metrics.weights_pause_s)  # fmt: skip
                manifest = None
        except WeightsError as error:
            if not isinstance(error, PublisherUnavailable):  # else its received bytes are used
                manifest = None
            metrics.weights_failed[error.cause] += 1
            level = logging.INFO if error.cause == NO_LONGER_SERVED else logging.WARNING
            log.log(level, "%s", error)
        await asyncio.sleep(every_s)

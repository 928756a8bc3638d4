"""The weight subscriber: watches for newer weights and fetches them while generation goes on.

poll `latest` ─► newer? ─► ask for the chunks that differ (a few under way at a time)
                               └─► whole or patches, each checked ─► staged set ─► engine.load
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import zmq
import zmq.asyncio

from actors.weights.staging import UNKNOWN, StagedWeights
from buffer.wire.curve_keys import ClientKeys, load, present
from r3l.actor_metrics import ActorMetrics
from r3l.codec import pack, unpack
from r3l.endpoints import check_endpoint
from r3l.errors import PublisherUnavailable, RecordError, WeightsError, from_wire
from r3l.weights.manifest import MANIFEST_LIMIT, Manifest
from r3l.weights.patch import warm_up

log = logging.getLogger(__name__)

CREDIT = 4
"""Chunks asked for and not yet received."""
TAKERS = 2
"""Chunks checked and staged at the same time."""
SUPERSEDED = "superseded"


class WeightSubscriber:
    """Fetches weights from one publisher; each request has `timeout_s` to be answered.

    `keys`: the client's key file, if the publisher asks for one. `metrics` counts what it received.
    `loaded` is the (origin, version) that the engine holds, None before the first load.
    """

    def __init__(self, endpoint: str, *, timeout_s: float = 10.0, keys: Path | None = None) -> None:
        self.endpoint, self.timeout_s = check_endpoint(endpoint, "weights"), timeout_s
        warm_up()
        self.metrics = ActorMetrics()
        self.loaded: tuple[str, int] | None = None
        self.staged: StagedWeights | None = None
        self._keys = load(ClientKeys, keys) if keys else None
        self._rids = itertools.count()
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None

    async def latest(self) -> Manifest | None:
        """The newest set's manifest, when the engine does not hold that set.

        Raises PublisherUnavailable, WeightsError.
        """
        origin, have = self.loaded or ("", UNKNOWN)
        try:
            rid = await self._send({"op": "latest", "origin": origin, "have": have})
            header, payload = await self._receive()
            if header.get("rid") != rid:
                raise WeightsError("weights: an answer to another request", cause="out_of_step")
        except BaseException:
            self.disconnect()  # the answer must not meet the next request
            raise
        try:
            return Manifest.from_wire(unpack(payload[0], MANIFEST_LIMIT)) if payload else None
        except RecordError as error:
            raise WeightsError(f"weights: {error}", cause="malformed") from error

    async def fetch(self, manifest: Manifest) -> StagedWeights:
        """Stage the manifest's set; what is staged already stays.

        Raises WeightsError when something arrives damaged or is no longer offered (what did
        arrive is kept for the next attempt), PublisherUnavailable when nobody answers.
        """
        staged = self._stage(manifest)
        wanted = iter(staged.missing(manifest))
        asked: dict[int, int] = {}
        taking: set[asyncio.Task[None]] = set()
        try:
            for index in itertools.islice(wanted, CREDIT):
                await self._ask(staged, manifest, index, asked)
            while asked:
                header, payload = await self._receive()
                index = asked.pop(header.get("rid", UNKNOWN), UNKNOWN)
                self._check_chunk(header, manifest, index)
                self._count(payload, whole=bool(header.get("full")))
                if (following := next(wanted, None)) is not None:
                    await self._ask(staged, manifest, following, asked)
                await _until_fewer(taking, TAKERS)
                take = asyncio.to_thread(self._take, staged, manifest, index, header, payload)
                taking.add(asyncio.create_task(take))
            await _until_fewer(taking, 1)
        except BaseException:
            self.disconnect()  # whatever is still under way must not answer the next request
            raise
        finally:  # threads go on whatever happens here
            await asyncio.gather(*taking, return_exceptions=True)
        return staged

    def _count(self, frames: Sequence[memoryview], *, whole: bool) -> None:
        """Count the bytes of a whole chunk, or of its patches."""
        size = sum(len(frame) for frame in frames)
        if whole:
            self.metrics.weights_full_bytes += size
        else:
            self.metrics.weights_patch_bytes += size

    def disconnect(self) -> None:
        """Drop the connection; the next request opens a new one."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    def close(self) -> None:
        """Drop the connection and the staged set."""
        self.disconnect()
        self._context.destroy(linger=0)
        if self.staged is not None:
            self.staged.close()
            self.staged = None

    def _stage(self, manifest: Manifest) -> StagedWeights:
        """The staged set, emptied when it is another publisher's."""
        old = self.staged
        if old is None or old.layout != manifest.layout:
            if old is not None:
                old.close()
            self.staged = StagedWeights(manifest.layout, manifest.origin)
            return self.staged
        if old.origin != manifest.origin:
            old.origin, old.versions = manifest.origin, [UNKNOWN] * manifest.layout.num_chunks
        return old

    def _take(
        self,
        staged: StagedWeights,
        manifest: Manifest,
        index: int,
        header: dict[str, Any],
        payload: Sequence[memoryview],
    ) -> None:
        if not header.get("full"):
            staged.patch(index, manifest, payload)
        elif len(payload) == 1:
            staged.replace(index, manifest, payload[0])
        else:
            raise WeightsError("weights: a chunk without its bytes", cause="malformed")

    def _check_chunk(self, header: dict[str, Any], manifest: Manifest, index: int) -> None:
        if header.get("gone"):
            raise WeightsError(f"weights {manifest.version}: no longer offered", cause=SUPERSEDED)
        answer = (header.get("version"), header.get("index"))
        if index == UNKNOWN or answer != (manifest.version, index):
            raise WeightsError("weights: an answer to another request", cause="out_of_step")

    async def _ask(
        self, staged: StagedWeights, manifest: Manifest, index: int, asked: dict[int, int]
    ) -> None:
        request = {
            "op": "chunk",
            "origin": manifest.origin,
            "version": manifest.version,
            "index": index,
            "have": staged.versions[index],
        }
        asked[await self._send(request)] = index

    async def _send(self, request: dict[str, Any]) -> int:
        if self._socket is None:
            self._socket = self._connect()
        rid = next(self._rids)
        await self._socket.send(pack(request | {"rid": rid}))
        return rid

    def _connect(self) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 2 * CREDIT)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        if self._keys is not None:
            present(socket, self._keys)
        socket.connect(self.endpoint)
        return socket

    async def _receive(self) -> tuple[dict[str, Any], list[memoryview]]:
        assert self._socket is not None
        try:
            frames = await asyncio.wait_for(self._socket.recv_multipart(copy=False), self.timeout_s)
        except TimeoutError:
            self.disconnect()
            raise PublisherUnavailable(
                f"weights {self.endpoint}: no answer for {self.timeout_s:g} s", cause="no_answer"
            ) from None
        try:
            header = unpack(bytes(frames[0].buffer))
        except RecordError as error:
            raise WeightsError(f"weights: {error}", cause="malformed") from error
        if "error" in header:
            raise WeightsError(f"weights: refused, {from_wire(header)}", cause="refused")
        return header, [frame.buffer for frame in frames[1:]]


async def _until_fewer(tasks: set[asyncio.Task[None]], limit: int) -> None:
    """Wait until fewer than `limit` of the tasks are left; raises what one of them raised."""
    while len(tasks) >= limit:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks -= done
        for task in done:
            task.result()


class Loads(Protocol):
    """An engine that takes a staged set."""

    async def load(self, path: str, manifest: Manifest) -> float:
        """Load it while running requests wait; returns the pause in seconds."""


async def follow(subscriber: WeightSubscriber, policy: Loads, *, every_s: float = 0.1) -> None:
    """Keep the engine on the newest weights, for ever.

    Waits for the publisher; a failed fetch is counted and tried again, generation goes on.
    Versions that appear and vanish while one is loaded are skipped.
    """
    metrics = subscriber.metrics
    while True:
        try:
            manifest = await subscriber.latest()
            if manifest is not None:
                began = time.monotonic()
                staged = await subscriber.fetch(manifest)
                metrics.weights_fetch_s = time.monotonic() - began
                subscriber.loaded = None
                metrics.weights_pause_s = await policy.load(staged.path, manifest)
                subscriber.loaded = (manifest.origin, manifest.version)
                metrics.weights_updates += 1
                log.info(
                    "weights %d: fetch %.3f s, pause %.3f s",
                    manifest.version,
                    metrics.weights_fetch_s,
                    metrics.weights_pause_s,
                )
        except WeightsError as error:
            metrics.weights_failed[error.cause] += 1
            log.log(logging.INFO if error.cause == SUPERSEDED else logging.WARNING, "%s", error)
        await asyncio.sleep(every_s)

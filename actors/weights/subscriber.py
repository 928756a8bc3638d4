"""Keeps an engine on the newest weights: polls for weights, fetches them during generation.

poll `latest` ─► newer? ─► request the chunks that differ, by ranges, a few in flight
                               └► whole or patches, checked ─► staged set ─► load (actors.engine)

Over a slow link a set may take minutes. So each deadline applies only to the next range, received
bytes survive a broken connection, and the publisher is asked to keep the version meanwhile.
"""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import zmq.asyncio
from xxhash import xxh3_64_intdigest

from actors.weights.chunk_ranges import ChunkRange, ChunkRanges, CompleteChunk, RangeSize
from actors.weights.link import REQUESTS_IN_FLIGHT, Link
from actors.weights.staging import UNKNOWN, StagedWeights
from buffer.wire import curve_keys
from r3l.codec import unpack
from r3l.errors import PublisherUnavailable, RecordError, WeightsError
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.process.endpoints import PORTS, check_endpoint
from r3l.weights.keyed_sums import KEY_BYTES
from r3l.weights.manifest import MANIFEST_LIMIT, Manifest

log = logging.getLogger(__name__)

STAGING = 2
"""The most chunks that are checked and staged at the same time."""
NO_LONGER_SERVED = "no_longer_served"
BULK_FAILED = ("no_reply", "forged", "malformed", "refused", "too_large")
"""Causes after which chunks are fetched over the encrypted connection for BULK_AGAIN_S seconds."""
BULK_AGAIN_S = 60.0
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
        secrets = curve_keys.load(curve_keys.ClientKeys, keys) if keys else None
        self._context = zmq.asyncio.Context()
        self._link = Link(self._context, endpoint, timeout_s, keys=secrets)
        self._bulk: Link | None = None
        self._bulk_again_at = 0.0

    async def latest(self) -> Manifest | None:
        """Returns the newest manifest, or None if the engine is up to date. Raises
        PublisherUnavailable, WeightsError."""
        origin, have = self.loaded or ("", UNKNOWN)
        try:
            rid = await self._link.send({"op": "latest", "origin": origin, "have": have})
            header, payload = await self._link.receive()
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
        if manifest is not None:
            self._learn_of_bulk(header)
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
        staged, began = self.stage(manifest), time.monotonic()
        self._ranges.begin(manifest, staged)
        requested: dict[int, ChunkRange] = {}
        staging: set[asyncio.Task[None]] = set()
        link = self._for_chunks()
        try:
            await self._request_more(staged, manifest, requested, link)
            while requested:
                asked = time.monotonic()
                header, payload = await link.receive()
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
                await self._request_more(staged, manifest, requested, link)
                if complete is not None:
                    await _until_fewer(staging, STAGING)
                    store = asyncio.to_thread(self._store, staged, manifest, complete)
                    staging.add(asyncio.create_task(store))
            await _until_fewer(staging, 1)
        except BaseException as error:
            self.disconnect()  # replies under way must not reach the next request
            if isinstance(error, PublisherUnavailable):
                self._range_size.stalled()
            if link is self._bulk and getattr(error, "cause", "") in BULK_FAILED:
                self._bulk_again_at = time.monotonic() + BULK_AGAIN_S
            raise
        finally:  # threads cannot be cancelled
            await asyncio.gather(*staging, return_exceptions=True)
        return staged

    @asynccontextmanager
    async def bring(self, manifest: Manifest) -> AsyncIterator[str]:
        """Fetches a set and yields the path of its file. Raises WeightsError as `fetch` does."""
        yield (await self.fetch(manifest)).path

    @property
    def bulk_key(self) -> bytes | None:
        """The key of keyed checksums, if the publisher has named one."""
        return self._bulk.key if self._bulk is not None else None

    def forget(self) -> None:
        """Frees the staged set."""
        if self.staged is not None:
            self.staged.close()
            self.staged = None

    def disconnect(self) -> None:
        """Closes the connections; the next request opens a new one."""
        self._link.disconnect()
        if self._bulk is not None:
            self._bulk.disconnect()

    def close(self) -> None:
        self.disconnect()
        self._context.destroy(linger=0)
        self.forget()

    def stage(self, manifest: Manifest) -> StagedWeights:
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
        self,
        staged: StagedWeights,
        manifest: Manifest,
        requested: dict[int, ChunkRange],
        link: Link,
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
            requested[await link.send(request)] = wanted

    def _learn_of_bulk(self, header: dict[str, Any]) -> None:
        """Notes where chunks are served with keyed checksums, if the publisher says so."""
        wanted: tuple[str, bytes] | None = None
        match header.get("bulk"):
            case {"port": int(port), "key": bytes(key)} if (
                self._link.encrypted  # else the key was no secret
                and port in PORTS
                and len(key) == KEY_BYTES
            ):
                wanted = f"{self.endpoint.rpartition(':')[0]}:{port}", key
        if self._bulk is not None and (self._bulk.endpoint, self._bulk.key) != wanted:
            self._bulk.disconnect()
            self._bulk = None
        if self._bulk is None and wanted is not None:
            endpoint, key = wanted
            self._bulk = Link(self._context, endpoint, self.timeout_s, key=key)

    def _for_chunks(self) -> Link:
        """Returns the link for chunks: the keyed one, unless it has just failed."""
        if self._bulk is None or time.monotonic() < self._bulk_again_at:
            return self._link
        return self._bulk


async def _until_fewer(tasks: set[asyncio.Task[None]], limit: int) -> None:
    """Waits until fewer than `limit` tasks are running. Raises the error of a failed task."""
    while len(tasks) >= limit:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks -= done
        for task in done:
            task.result()


Load = Callable[[str, Manifest], Awaitable[float]]
"""Loads a staged set into an engine; returns the pause in seconds."""


Bring = Callable[[Manifest], AbstractAsyncContextManager[str]]
"""Stages a set and yields its path (actors.weights.transport)."""


async def follow(
    subscriber: WeightSubscriber, load: Load, bring: Bring | None = None, *, every_s: float = 0.1
) -> None:
    """Keeps the engine on the newest weights until cancelled. `bring` stages them, by default
    `subscriber.bring`.

    Generation continues during a fetch. A failed fetch is counted and repeated. If several versions
    are published during a fetch or load, only the newest of them is fetched.
    """
    metrics, manifest, bring = subscriber.metrics, None, bring or subscriber.bring
    while True:
        try:
            manifest = manifest or await subscriber.latest()
            if manifest is not None:
                began = time.monotonic()
                async with bring(manifest) as path:
                    metrics.weights_fetch_s = time.monotonic() - began
                    subscriber.loaded = None
                    metrics.weights_pause_s = await load(path, manifest)
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

"""Publishes weights to every subscriber, each at its own pace.

    learner loop ── begin(version, tensors) ──► copy          beside the next step, in a thread:
                                                 └─► compare ─► chunks ◄── ROUTER ── actors

The publisher holds one copy of the weights as chunks, each with its newest patches
(r3l.weights.chunks). A subscriber requests ranges of chunks, a few at a time. So a slow subscriber
does not delay others, and only ranges in transit take extra memory.

A step only copies the weights (learner.publishing.weight_copy). Comparing, compressing and writing
the journal happen beside the next step. The next version waits for them.

Publishing replaces the chunks one by one. A request for a replaced chunk is answered with `gone`.
The subscriber then asks for the new version. A slow subscriber can ask to `keep` the version that
it is fetching. Only one older version is kept at a time.
"""

import itertools
import logging
import os
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import zmq
from torch import Tensor
from xxhash import xxh3_64_intdigest

from buffer.wire.traffic import CHECK_S
from learner.publishing.publication import Publication
from learner.publishing.weight_copy import WeightCopy
from learner.publishing.weight_door import WeightDoor
from learner.step.tensor_file import Shape, on_host
from r3l.codec import pack, unpack
from r3l.errors import R3LError, RecordError, UserError, WeightsError, to_wire
from r3l.notices import notice_again
from r3l.run.process.endpoints import check_bind
from r3l.weights.chunks import Chunk, assemble
from r3l.weights.journal import Journal
from r3l.weights.keyed_sums import new_key
from r3l.weights.manifest import (
    CHUNK_BYTES,
    MANIFEST_LIMIT,
    Adapters,
    Bytes,
    Layout,
    Manifest,
    Piece,
)
from r3l.weights.ray_store import RayStore
from r3l.weights.sums import Sums, add_sums, only_dtype, sums_of

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_MS = int(CHECK_S * 1000)
KEEP_S = 60.0  # how long a set is kept after the last request for it
THREADS = min(16, os.cpu_count() or 1)  # that compare and compress chunks


class KeptWeights(NamedTuple):
    """Keeps an older set of weights for slow subscribers."""

    version: int
    chunks: list[Chunk | None]


class WeightPublisher:
    """Serves weights over ZeroMQ from a thread. `endpoint`: `address` with the chosen port.
    Versions divisible by `anchor_every` are served without patches. `keys`: the key file,
    optional for a loopback address. With `keyed_bulk`, chunks of encrypted services are also served
    with keyed checksums, readable by others. Publishing a version may take `deadline_s` seconds.
    Raises UserError if the service cannot listen."""

    def __init__(
        self,
        address: str,
        *,
        anchor_every: int = 50,
        keys: Path | None = None,
        journal: Journal | None = None,
        deadline_s: float = 1200.0,
        keyed_bulk: bool = False,
    ) -> None:
        check_bind(address, "weights", encrypted=keys is not None)
        self.anchor_every, self.journal, self.deadline_s = anchor_every, journal, deadline_s
        self.origin = uuid.uuid4().hex
        self.sent: Counter[str] = Counter()
        """What was sent: bytes of whole chunks (`full_bytes`) and of patches (`patch_bytes`), and
        the number of replies that refused a request (`refused`)."""
        self.metrics: dict[str, float] = {}
        """Metrics of the newest version that was published."""
        self.store: RayStore | None = None
        """Ray's store, which also gets each version before subscribers learn of it."""
        self._not_in_store = 0
        self._copy = WeightCopy()
        self._publication: Publication | None = None
        self._manifest: Manifest | None = None
        self._chunks: list[Chunk | None] = []
        self._slow: dict[bytes, tuple[int, float]] = {}
        """For each slow subscriber: the version that it asked to keep, and when it last asked."""
        self._kept: KeptWeights | None = None
        self._keeping = threading.Lock()  # guards the two fields above
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="chunks")
        self._doors = [WeightDoor(address, keys=keys)]
        self.endpoint = self._doors[0].endpoint
        if keys is not None and keyed_bulk:
            host = address.rpartition(":")[0]
            try:
                self._doors.append(WeightDoor(f"{host}:0", key=new_key()))
            except UserError:
                self._doors[0].close()
                raise
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="weights", daemon=True)
        self._thread.start()

    def publish(
        self,
        version: int,
        weights: Iterable[tuple[str, Tensor]],
        dtype: torch.dtype | None = None,
        shapes: Sequence[Shape] | None = None,
        adapters: Adapters | None = None,
    ) -> dict[str, float]:
        """Like `begin`, but also waits until the version is published. Returns metrics."""
        self.begin(version, weights, dtype, shapes, adapters)
        self.published(self.deadline_s)
        return self.metrics

    def begin(
        self,
        version: int,
        weights: Iterable[tuple[str, Tensor]],
        dtype: torch.dtype | None = None,
        shapes: Sequence[Shape] | None = None,
        adapters: Adapters | None = None,
    ) -> dict[str, float]:
        """Copies `weights` and publishes them as the newest version in a thread, converted to
        `dtype` if given. The tensors are named as in a checkpoint. Without `shapes`, all tensors
        are in memory at once. If the memory has no room for a copy, publishes before it returns.

        Waits for the previous version. Returns metrics of copying. Raises WeightsError as
        `published` does.
        """
        self.published(self.deadline_s)
        began = time.monotonic()
        if shapes is None:
            weights = list(weights)
            shapes = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights]
        layout = Layout.of(
            (name, str(dtype or its_own).removeprefix("torch."), shape)
            for name, its_own, shape in shapes
        )
        rest = iter(weights)
        first = next(rest, None)
        weights = itertools.chain([first] if first else [], rest)
        if self._copy.reserve(layout.total_bytes, of_gpu=first is not None and first[1].is_cuda):
            self._copy.take(layout, weights)
            work = partial(self._renew, version, layout, self._copy.pieces(layout), adapters)
            self._publication = Publication(version, work, self.deadline_s)
        else:
            log.info("weights %d: no memory for a copy, so they are published in the step", version)
            parts = layout.cut(_bytes(tensor, dtype) for _, tensor in weights)
            self.metrics = self._renew(version, layout, parts, adapters)
        return {"copy_s": time.monotonic() - began}

    def published(self, wait_s: float = 0.0) -> bool:
        """Returns whether the last version is published, after at most `wait_s` seconds. Raises
        WeightsError if publishing failed or is overdue, or if the serving thread has ended."""
        if not self._thread.is_alive():
            raise WeightsError(
                f"weights {self.endpoint}: the serving thread has ended; its error is above in "
                "this log",
                cause="not_served",
            )
        if (last := self._publication) is None:
            return True
        try:
            if not last.ended(wait_s):
                return False
        finally:
            if last.over:
                self._publication = None
        self.metrics = last.metrics
        return True

    def _renew(
        self,
        version: int,
        layout: Layout,
        parts: Iterable[Sequence[Piece]],
        adapters: Adapters | None,
    ) -> dict[str, float]:
        """Compares each chunk with its previous version, and serves the new one. `parts`: the
        pieces of each chunk. Returns metrics."""
        began = time.monotonic()
        self._keep_for_slow()
        if self._manifest is None or self._manifest.layout != layout:
            self._manifest, self._chunks = None, [None] * layout.num_chunks
        anchor, dtype_name = version % self.anchor_every == 0, only_dtype(layout)

        def next_chunk(index: int, pieces: Sequence[Piece]) -> tuple[Chunk, Sums]:
            span, old = layout.span(index), self._chunks[index]
            data = assemble(pieces, span.stop - span.start)
            sums = sums_of(data, dtype_name) if dtype_name else (0, 0)
            if old is None or anchor:
                return Chunk.whole(data, version), sums
            return old.next_version(data, version, layout.width), sums

        chunks: list[Chunk] = []
        sums: list[Sums] = []
        for chunk, its_sums in _in_threads(self._pool, next_chunk, parts):
            self._chunks[len(chunks)] = chunk
            chunks.append(chunk)
            sums.append(its_sums)
        checksums = tuple(chunk.checksum for chunk in chunks)
        whole = add_sums(sums) if dtype_name else None
        manifest = Manifest(self.origin, version, layout, checksums, whole, adapters)
        stored = self._put_into_store(manifest, chunks)
        self._manifest = manifest
        return {
            **_metrics(chunks, layout),
            **stored,
            **self._keep_in_journal(manifest, chunks),
            "refused": float(self.sent["refused"]),
            "publish_s": time.monotonic() - began,
        }

    @property
    def bulk_key(self) -> bytes | None:
        """The key of keyed checksums, if chunks may be read by others."""
        return self._doors[-1].key

    def _put_into_store(self, manifest: Manifest, chunks: Sequence[Chunk]) -> dict[str, float]:
        """Puts a version into Ray's store and returns metrics. If Ray fails, shows a notice and
        raises no error: subscribers then fetch from this publisher."""
        if self.store is None:
            return {}
        try:
            self.store.hand_out(manifest, chunks)
        except Exception as error:  # Ray raises many kinds
            self._not_in_store += 1
            why = f"weights {manifest.version}: not in Ray's object store ({error!s:.300})"
            log.warning(why)
            notice_again("weights in Ray", f"{why}; actors fetch them from the learner")
        return {"not_in_ray": float(self._not_in_store)}

    def _keep_in_journal(self, manifest: Manifest, chunks: Sequence[Chunk]) -> dict[str, float]:
        """Writes a version to the journal and returns metrics. If the write fails, shows a notice
        and raises no error."""
        if self.journal is None:
            return {}
        try:
            return {"journal_bytes": float(self.journal.append(manifest, chunks))}
        except OSError as error:
            folder = self.journal.folder
            missing = f"{folder}: version {manifest.version} could not be written ({error})"
            log.warning(missing)
            notice_again(str(folder), f"{missing}; training continues")
            return {"journal_bytes": 0.0}

    def close(self) -> None:
        """Publishes what was begun, then ends the service."""
        if self._thread.is_alive():
            try:
                self.published(self.deadline_s)
            except WeightsError as error:
                log.warning("%s", error)
        self._stop.set()
        self._thread.join(timeout=5)
        self._pool.shutdown(cancel_futures=True)
        self._copy.close()
        for door in self._doors:
            door.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (socket for door in self._doors for socket in door.sockets):
            poller.register(socket, zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(POLL_MS))
            for door in self._doors:
                if door.access.is_due(ready):
                    door.access.update()
                    self._forget_kept(time.monotonic())
                if door.socket in ready:
                    self._handle(door)
        for door in self._doors:
            door.access.close()

    def _handle(self, door: WeightDoor) -> None:
        received, payload = door.receive(), list[Any]()
        try:
            request = unpack(door.request(received))
            if door.key is not None and request.get("op") != "chunk":
                raise RecordError("weights: this port serves chunks only")
            header, payload = self._reply(received.client, request)
        except R3LError as error:
            self.sent["refused"] += 1
            header = to_wire(error)
        try:
            door.send(received.client, [pack(header), *payload])
        except zmq.ZMQError as error:
            log.info("weights: a subscriber left before it received its reply (%s)", error)

    def _reply(self, client: bytes, request: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        reply: dict[str, Any] = {"rid": request.get("rid")}
        match request:
            case {"op": "latest", "origin": str(origin), "have": int(have)}:
                manifest = self._manifest
                with self._keeping:  # the client no longer needs the set it asked to keep
                    self._slow.pop(client, None)
                if manifest is None or (origin == self.origin and manifest.version <= have):
                    return reply, []
                packed = pack(manifest.to_wire(), MANIFEST_LIMIT)
                for door in self._doors[1:]:
                    reply |= {"bulk": {"port": door.port, "key": door.key}}
                return reply | {"sum": xxh3_64_intdigest(packed)}, [packed]
            case {
                "op": "chunk",
                "origin": str(origin),
                "version": int(version),
                "index": int(index),
                "have": int(have),
                "at": int(at),
                "size": int(size),
                "keep": bool(keep),
            } if at >= 0 < size:
                reply |= {"version": version, "index": index}
                chunk = self._find(version, index) if origin == self.origin else None
                if chunk is None:
                    return reply | {"gone": True}, []
                if keep:
                    with self._keeping:
                        self._slow[client] = version, time.monotonic()
                return self._range(reply, chunk, have, at, min(size, CHUNK_BYTES))
        raise RecordError(f"weights: unknown request {str(request)[:200]}")

    def _range(
        self, reply: dict[str, Any], chunk: Chunk, have: int, at: int, size: int
    ) -> tuple[dict[str, Any], list[Any]]:
        """Returns a reply with `size` bytes of data, starting at offset `at`. The data are the
        joined patches that follow version `have`, or the whole chunk if a patch is missing."""
        patches = chunk.since(have)
        if patches is None:
            lengths, sent = [len(chunk.data)], chunk.data.data[at : at + size]
        else:
            frames = [patch.to_wire() for patch in patches]
            lengths = [len(frame) for frame in frames]
            sent = memoryview(b"".join(frames))[at : at + size]
        self.sent["full_bytes" if patches is None else "patch_bytes"] += len(sent)
        return reply | {"full": patches is None, "lengths": lengths}, [sent]

    # ── slow subscribers ────────────────────────────────────────────────────────────────

    def _find(self, version: int, index: int) -> Chunk | None:
        """Returns a chunk of this version, or None if the publisher no longer has the chunk."""
        kept = self._kept
        for chunks in (self._chunks, kept.chunks if kept and kept.version == version else []):
            chunk = chunks[index] if 0 <= index < len(chunks) else None
            if chunk is not None and chunk.version == version:
                return chunk
        return None

    def _keep_for_slow(self) -> None:
        """Keeps the served version if a subscriber asked to keep it. Keeps at most one version."""
        with self._keeping:
            wanted = {version for version, _ in self._slow.values()}
            if self._kept is None and self._manifest and self._manifest.version in wanted:
                self._kept = KeptWeights(self._manifest.version, list(self._chunks))

    def _forget_kept(self, now: float) -> None:
        """Forgets subscribers' requests after KEEP_S. Drops the kept version if no request for it
        is left."""
        with self._keeping:
            silent = [c for c, (_, asked) in self._slow.items() if now > asked + KEEP_S]
            for client in silent:
                del self._slow[client]
            wanted = {version for version, _ in self._slow.values()}
            if self._kept is not None and self._kept.version not in wanted:
                self._kept = None


def _in_threads(
    pool: ThreadPoolExecutor,
    function: Callable[[int, Sequence[Piece]], T],
    chunks: Iterable[Sequence[Piece]],
) -> Iterator[T]:
    """Calls `function(index, pieces)` for each chunk, a few calls at a time. Yields the results in
    order."""
    ahead: deque[Future[T]] = deque()
    try:
        for index, pieces in enumerate(chunks):
            ahead.append(pool.submit(function, index, pieces))
            if len(ahead) > THREADS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        wait(ahead)  # no call may outlive the iterator


def _bytes(tensor: Tensor, dtype: torch.dtype | None) -> Bytes:
    flat = on_host(tensor.detach().to(dtype or tensor.dtype)).contiguous().view(-1)
    data: Bytes = flat.view(torch.uint8).numpy()
    return data


def _metrics(chunks: Sequence[Chunk], layout: Layout) -> dict[str, float]:
    newest = [c.patches[-1] for c in chunks if c.patches]
    unpatched = sum(len(c.data) for c in chunks if not c.patches)
    elements = max(layout.total_bytes // layout.width, 1)
    return {
        "full_bytes": float(layout.total_bytes),
        "patch_bytes": float(sum(len(p.body) for p in newest) + unpatched),
        "patch_density": (sum(p.changed for p in newest) + unpatched / layout.width) / elements,
    }

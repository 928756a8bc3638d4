"""Publishes weights to every subscriber, each at its own pace.

    learner loop ── publish(version, tensors) ──► chunks ◄── ROUTER ── latest / chunk ── actors

The publisher holds one copy of the weights as chunks, each with its newest patches
(r3l.weights.chunks). A subscriber requests ranges of chunks, a few at a time. So a slow subscriber
does not delay others, and only ranges in transit take extra memory.

Publishing replaces the chunks one by one. A request for a replaced chunk is answered with `gone`.
The subscriber then asks for the new version. A slow subscriber can ask to `keep` the version that
it is fetching. Only one older version is kept at a time.
"""

import logging
import os
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import zmq
from torch import Tensor
from xxhash import xxh3_64_intdigest

from buffer.wire.access import Access, allow_files
from buffer.wire.curve_keys import ServiceKeys, load
from buffer.wire.sockets import Received, bind, new_socket, receive_from_peer
from buffer.wire.traffic import CHECK_S, Limits
from learner.step.tensor_file import on_host
from r3l.codec import pack, unpack
from r3l.errors import R3LError, RecordError, UserError, WeightsError, to_wire
from r3l.notices import notice_again
from r3l.run.process.endpoints import check_bind
from r3l.weights.chunks import Chunk, assemble
from r3l.weights.journal import Journal
from r3l.weights.manifest import (
    CHUNK_BYTES,
    MANIFEST_LIMIT,
    Adapters,
    Bytes,
    Layout,
    Manifest,
    Piece,
)
from r3l.weights.sums import Sums, added, only_dtype, sums_of

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_MS = int(CHECK_S * 1000)
CONNECTIONS = 4096  # subscribers; at most half the limit of open files
REQUEST_BYTES = 4096  # above the size of any request
CONNECTION_BYTES = 64 << 10  # unread, of one subscriber
TOTAL_BYTES = 4 << 20  # unread, of all subscribers
HIGH_WATER = 16  # replies queued for one subscriber; a well-behaved one requests fewer
KEEP_S = 60.0  # how long a set is kept after the last request for it
THREADS = min(16, os.cpu_count() or 1)  # that compare and compress chunks


class KeptWeights(NamedTuple):
    """Keeps an older set of weights for slow subscribers."""

    version: int
    chunks: list[Chunk | None]


class WeightPublisher:
    """Serves weights over ZeroMQ from a thread. `endpoint`: `address` with the chosen port.
    Versions divisible by `anchor_every` are served without patches. `keys`: the key file,
    optional for a loopback address. Raises UserError if the service cannot listen."""

    def __init__(
        self,
        address: str,
        *,
        anchor_every: int = 50,
        keys: Path | None = None,
        journal: Journal | None = None,
    ) -> None:
        check_bind(address, "weights", encrypted=keys is not None)
        self.anchor_every, self.journal = anchor_every, journal
        self.origin = uuid.uuid4().hex
        self.sent: Counter[str] = Counter()
        """What was sent: bytes of whole chunks (`full_bytes`) and of patches (`patch_bytes`), and
        the number of replies that refused a request (`refused`)."""
        self._manifest: Manifest | None = None
        self._chunks: list[Chunk | None] = []
        self._slow: dict[bytes, tuple[int, float]] = {}
        """For each slow subscriber: the version that it asked to keep, and when it last asked."""
        self._kept: KeptWeights | None = None
        self._keeping = threading.Lock()  # guards the two fields above
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="chunks")
        secrets = load(ServiceKeys, keys) if keys else None
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = new_socket(
            self._context,
            zmq.ROUTER,
            ROUTER_MANDATORY=1,
            SNDHWM=HIGH_WATER,
            SNDTIMEO=0,  # a subscriber that does not read loses replies
            MAXMSGSIZE=REQUEST_BYTES,
            HEARTBEAT_IVL=5000,
            HEARTBEAT_TIMEOUT=30000,
        )
        files = allow_files(2 * CONNECTIONS)
        limits = Limits(CONNECTION_BYTES, TOTAL_BYTES, silent=min(512, files // 4))
        connections = min(CONNECTIONS, files // 2)
        self._access = Access(self._context, self._socket, secrets, connections, limits)
        try:
            self.endpoint = bind(self._socket, address, "weights")
        except UserError:
            self._context.destroy(linger=0)
            raise
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="weights", daemon=True)
        self._thread.start()

    def publish(
        self,
        version: int,
        weights: Iterable[tuple[str, Tensor]],
        dtype: torch.dtype | None = None,
        shapes: Sequence[tuple[str, torch.dtype, tuple[int, ...]]] | None = None,
        adapters: Adapters | None = None,
    ) -> dict[str, float]:
        """Serves `weights` as the newest version, converted to `dtype` if given. The tensors are
        named as in a checkpoint. Without `shapes`, all tensors are in memory at once. Returns
        metrics. Raises WeightsError if the serving thread has ended."""
        if not self._thread.is_alive():
            raise WeightsError(
                f"weights {self.endpoint}: the serving thread has ended; its error is above in "
                "this log",
                cause="not_served",
            )
        began = time.monotonic()
        self._keep_for_slow()
        if shapes is None:
            weights = list(weights)
            shapes = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights]
        layout = Layout.of(
            (name, str(dtype or its_own).removeprefix("torch."), shape)
            for name, its_own, shape in shapes
        )
        if self._manifest is None or self._manifest.layout != layout:
            self._manifest, self._chunks = None, [None] * layout.num_chunks
        anchor = version % self.anchor_every == 0

        dtype_name = only_dtype(layout)

        def next_chunk(index: int, pieces: Sequence[Piece]) -> tuple[Chunk, Sums]:
            span, old = layout.span(index), self._chunks[index]
            data = assemble(pieces, span.stop - span.start)
            sums = sums_of(data, dtype_name) if dtype_name else (0, 0)
            if old is None or anchor:
                return Chunk.whole(data, version), sums
            return old.updated(data, version, layout.width), sums

        parts = layout.cut(_bytes(tensor, dtype) for _, tensor in weights)
        chunks: list[Chunk] = []
        sums: list[Sums] = []
        for chunk, its_sums in _in_threads(self._pool, next_chunk, parts):
            self._chunks[len(chunks)] = chunk
            chunks.append(chunk)
            sums.append(its_sums)
        checksums = tuple(chunk.checksum for chunk in chunks)
        whole = added(sums) if dtype_name else None
        self._manifest = Manifest(self.origin, version, layout, checksums, whole, adapters)
        return {
            **_metrics(chunks, layout),
            **self._keep_in_journal(self._manifest, chunks),
            "refused": float(self.sent["refused"]),
            "publish_s": time.monotonic() - began,
        }

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
        self._stop.set()
        self._thread.join(timeout=5)
        self._pool.shutdown()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._socket, *self._access.sockets):
            poller.register(socket, zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(POLL_MS))
            if self._access.is_due(ready):
                self._access.update()
                self._forget_kept(time.monotonic())
            if self._socket in ready:
                received = receive_from_peer(self._socket)
                self._access.traffic.mark_read(received)
                self._handle(received)
        self._access.close()

    def _handle(self, received: Received) -> None:
        payload: list[Any] = []
        try:
            header, payload = self._reply(received.client, unpack(received.frames[-1]))
        except R3LError as error:
            self.sent["refused"] += 1
            header = to_wire(error)
        try:
            frames = [received.client, pack(header), *payload]
            self._socket.send_multipart(frames, copy=False)
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

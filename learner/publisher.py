"""The weight publisher: serves weights to every subscriber at the subscriber's own pace.

    learner loop ── publish(version, tensors) ──► chunks ◄── ROUTER ── latest / chunk ── actors

It holds one copy of the weights, cut into chunks, and for each chunk the patches that led to it
(r3l.weights.chunks). A subscriber requests a set chunk by chunk, so a slow or stopped one delays
no other and costs only the memory of the few chunks in transit to it.

Publishing replaces one chunk after the other. A request for a chunk that was replaced already is
replied to with `gone`; the subscriber keeps what it has and asks for the new version.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
import zmq
from torch import Tensor

from buffer.wire.access import Access, allow_files
from buffer.wire.binding import bind
from buffer.wire.curve_keys import ServiceKeys, load
from buffer.wire.frames import Received, receive_from_peer
from buffer.wire.traffic import LOOKS_S, Limits
from r3l.codec import pack, unpack
from r3l.endpoints import check_bind
from r3l.errors import R3LError, RecordError, UserError, WeightsError, to_wire
from r3l.weights.chunks import Chunk, assemble
from r3l.weights.manifest import MANIFEST_LIMIT, Bytes, Layout, Manifest, Piece

log = logging.getLogger(__name__)

POLL_MS = int(LOOKS_S * 1000)
CONNECTIONS = 4096  # subscribers, half as many as files may be open at most
REQUEST_BYTES = 4096  # more than a request has
CONNECTION_BYTES = 64 << 10  # sent by one subscriber and not yet taken
TOTAL_BYTES = 4 << 20  # sent by all subscribers and not yet taken
HIGH_WATER = 16  # replies queued for one subscriber; a well-behaved one requests fewer
THREADS = min(16, os.cpu_count() or 1)  # compare and compress chunks


class WeightPublisher:
    """Serves weights over ZeroMQ from a thread of its own.

    `endpoint`: its address (port 0 or * in `address` takes a free one). `anchor_every`: versions
    between two that every subscriber fetches whole. `keys`: a service's key file; without it only
    loopback is served. Raises UserError for a port in use or an address that is not local.
    """

    def __init__(self, address: str, *, anchor_every: int = 50, keys: Path | None = None) -> None:
        check_bind(address, "weights", encrypted=keys is not None)
        self.anchor_every = anchor_every
        self.origin = uuid.uuid4().hex
        self.sent: Counter[str] = Counter()
        """Bytes sent, whole chunks (`full_bytes`) and patches (`patch_bytes`); requests refused
        (`refused`)."""
        self._manifest: Manifest | None = None
        self._chunks: list[Chunk | None] = []
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="chunks")
        secrets = load(ServiceKeys, keys) if keys else None
        self._context = zmq.Context()
        self._socket = _router(self._context)
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
        weights: Sequence[tuple[str, Tensor]],
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """Serve tensors (checkpoint names) as the newest version, in `dtype` if one is given.

        Converts one tensor at a time. Returns metrics for `weights/`: bytes of the whole set and
        of the patches to it, the share of elements sent, seconds. Raises WeightsError if the
        serving thread has ended, because actors would wait in vain.
        """
        if not self._thread.is_alive():
            raise WeightsError(
                f"weights {self.endpoint}: the serving thread has ended; its error is above in "
                "this log",
                cause="not_served",
            )
        began = time.monotonic()
        layout = Layout.of((name, _name(dtype or t.dtype), tuple(t.shape)) for name, t in weights)
        if self._manifest is None or self._manifest.layout != layout:
            self._manifest, self._chunks = None, [None] * layout.num_chunks
        anchor = version % self.anchor_every == 0

        def next_chunk(index: int, pieces: Sequence[Piece]) -> Chunk:
            span, old = layout.span(index), self._chunks[index]
            data = assemble(pieces, span.stop - span.start)
            if old is None or anchor:
                return Chunk.whole(data, version)
            return old.updated(data, version, layout.width)

        parts = layout.cut(_bytes(tensor, dtype) for _, tensor in weights)
        chunks: list[Chunk] = []
        for chunk in _in_threads(self._pool, next_chunk, parts):
            self._chunks[len(chunks)] = chunk
            chunks.append(chunk)
        checksums = tuple(chunk.checksum for chunk in chunks)
        self._manifest = Manifest(self.origin, version, layout, checksums)
        return _metrics(chunks, layout) | {"publish_s": time.monotonic() - began}

    def close(self) -> None:
        """Stop serving."""
        self._stop.set()
        self._thread.join(timeout=5)
        self._pool.shutdown()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._socket, *self._access.sockets):
            poller.register(socket, zmq.POLLIN)
        looked = 0.0
        while not self._stop.is_set():
            ready = dict(poller.poll(POLL_MS))
            if (now := time.monotonic()) >= looked + LOOKS_S or self._access.asked(ready):
                looked = now
                self._access.update()
            if self._socket in ready:
                received = receive_from_peer(self._socket)
                self._access.traffic.taken(received)
                self._handle(received)
        self._access.close()

    def _handle(self, received: Received) -> None:
        payload: list[Any] = []
        try:
            header, payload = self._reply(unpack(received.frames[-1]))
        except R3LError as error:
            self.sent["refused"] += 1
            header = to_wire(error)
        try:
            frames = [received.client, pack(header), *payload]
            self._socket.send_multipart(frames, copy=False)
        except zmq.ZMQError as error:
            log.info("weights: a subscriber left before its reply (%s)", error)

    def _reply(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        reply: dict[str, Any] = {"rid": request.get("rid")}
        match request:
            case {"op": "latest", "origin": str(origin), "have": int(have)}:
                manifest = self._manifest
                if manifest is None or (origin == self.origin and manifest.version <= have):
                    return reply, []
                return reply, [pack(manifest.to_wire(), MANIFEST_LIMIT)]
            case {
                "op": "chunk",
                "origin": str(origin),
                "version": int(version),
                "index": int(index),
                "have": int(have),
            }:
                reply |= {"version": version, "index": index}
                chunks = self._chunks
                chunk = chunks[index] if 0 <= index < len(chunks) else None
                if chunk is None or origin != self.origin or chunk.version != version:
                    return reply | {"gone": True}, []
                return self._chunk(reply, chunk, have)
        raise RecordError(f"weights: unknown request {str(request)[:200]}")

    def _chunk(
        self, reply: dict[str, Any], chunk: Chunk, have: int
    ) -> tuple[dict[str, Any], list[Any]]:
        patches = chunk.since(have)
        if patches is None:
            self.sent["full_bytes"] += len(chunk.data)
            return reply | {"full": True}, [chunk.data.data]
        frames = [patch.to_wire() for patch in patches]
        self.sent["patch_bytes"] += sum(len(frame) for frame in frames)
        return reply | {"full": False}, frames


def _router(context: zmq.Context[Any]) -> zmq.Socket[bytes]:
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, HIGH_WATER)
    router.setsockopt(zmq.SNDTIMEO, 0)  # a subscriber that does not read loses replies
    router.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES)
    router.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30000)
    return router


def _in_threads(
    pool: ThreadPoolExecutor,
    function: Callable[[int, Sequence[Piece]], Chunk],
    chunks: Iterable[Sequence[Piece]],
) -> Iterator[Chunk]:
    """`function` of each chunk's index and pieces, in order, a few at the same time. All calls have
    ended when this ends, also if it raises."""
    ahead: deque[Future[Chunk]] = deque()
    try:
        for index, pieces in enumerate(chunks):
            ahead.append(pool.submit(function, index, pieces))
            if len(ahead) > THREADS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        wait(ahead)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: Tensor, dtype: torch.dtype | None) -> Bytes:
    flat = tensor.detach().to(device="cpu", dtype=dtype or tensor.dtype).contiguous().view(-1)
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

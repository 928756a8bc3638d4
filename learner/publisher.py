"""The weight publisher: hands weights to whoever asks, at the asker's own pace.

    learner loop ── publish(version, tensors) ──► chunks ◄── ROUTER ── latest / chunk ── actors

Held are one copy of the weights, cut into chunks, and for each chunk the patches that led to it
(r3l.weights.chunks). Every transfer is pulled chunk by chunk by the subscriber, so a slow or
stopped one holds back nobody and costs no memory but that of the few chunks on their way to it.
While a version is being published its chunks change one after the other, in their place; who asks
for a chunk that changes, or is past the version it wants, is told that this one is gone, and comes
back for the next with what it already has.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq
from torch import Tensor

from buffer.wire.access import Gate
from buffer.wire.curve_keys import ServiceKeys, load
from r3l.codec import pack, unpack
from r3l.endpoints import check_bind, is_local
from r3l.errors import R3LError, RecordError, UserError, WeightsError, to_wire
from r3l.weights.checksum import Bytes
from r3l.weights.chunks import LOOPBACK, NETWORK, Chunk, Link, whole
from r3l.weights.manifest import MANIFEST_LIMIT, Layout, Manifest
from r3l.weights.patch import Piece, warm_up

log = logging.getLogger(__name__)

POLL_MS = 200
CONNECTIONS = 4096
HIGH_WATER = 16  # answers waiting for one subscriber; a well-behaved one asks for fewer
THREADS = min(4, os.cpu_count() or 1)  # compare and compress chunks


class WeightPublisher:
    """Serves weights over ZeroMQ from a thread of its own.

    `endpoint` is where it listens (a port of 0 in `bind` takes a free one). `anchor_every`:
    versions between two that everyone fetches whole. `keys`: a service's key file; without it
    only loopback is served. `link`: the way to the subscribers; None: what suits the address.
    Raises UserError for a port in use or an address that is not local.
    """

    def __init__(
        self,
        bind: str,
        *,
        anchor_every: int = 50,
        keys: Path | None = None,
        link: Link | None = None,
    ) -> None:
        check_bind(bind, "weights", encrypted=keys is not None)
        warm_up()
        self.anchor_every = anchor_every
        self.link = link or (LOOPBACK if is_local(bind) else NETWORK)
        self.origin = uuid.uuid4().hex
        self.sent: Counter[str] = Counter()
        """Bytes sent, whole chunks (`full_bytes`) and patches (`patch_bytes`); requests refused
        (`refused`)."""
        self._manifest: Manifest | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="chunks")
        self._offer = threading.Lock()
        self._chunks: list[Chunk | None] = []
        self._sending: dict[int, list[zmq.MessageTracker]] = {}
        secrets = load(ServiceKeys, keys) if keys else None
        self._context = zmq.Context()
        self._socket = _router(self._context, self.link)
        self._gate = Gate(self._context, self._socket, secrets, CONNECTIONS)
        try:
            self._socket.bind(bind)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise UserError(
                f"weights {bind}: cannot listen ({error}); choose a free port"
            ) from None
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="weights", daemon=True)
        self._thread.start()

    def publish(
        self,
        version: int,
        weights: Sequence[tuple[str, Tensor]],
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """Offer tensors (checkpoint names) as the newest version, in `dtype` if one is given.

        Converts one tensor at a time. Returns figures for `weights/`: bytes of the whole set and
        of the patches to it, the share of elements sent, seconds. Raises WeightsError where
        nobody serves any more, so that actors do not wait in vain for what is published.
        """
        if not self._thread.is_alive():
            raise WeightsError(
                f"weights {self.endpoint}: the thread that serves them has ended; its error stands "
                "above in this log",
                cause="not_served",
            )
        began = time.monotonic()
        layout = Layout.of((name, _name(dtype or t.dtype), tuple(t.shape)) for name, t in weights)
        if self._manifest is None or self._manifest.layout != layout:
            with self._offer:
                self._manifest, self._chunks = None, [None] * layout.num_chunks
                self._sending = {}
        link = self.link if version % self.anchor_every else None

        def renewed(index: int, pieces: Sequence[Piece]) -> Chunk:
            old = self._withdraw(index)
            if old is None:
                span = layout.span(index)
                return whole(np.empty(span.stop - span.start, np.uint8), pieces, version)
            return old.renewed(pieces, version, layout.width, link)

        data = (_bytes(tensor, dtype) for _, tensor in weights)
        chunks: list[Chunk] = []
        for chunk in _in_threads(self._pool, renewed, layout.cut(data)):
            self._chunks[len(chunks)] = chunk
            chunks.append(chunk)
        checksums = tuple(chunk.checksum for chunk in chunks)
        self._manifest = Manifest(self.origin, version, layout, checksums)
        return _figures(chunks, layout) | {"publish_s": time.monotonic() - began}

    def _withdraw(self, index: int) -> Chunk | None:
        """Offer a chunk no longer, so that it can be changed in its place: one that is still on
        its way to somebody as a copy."""
        with self._offer:
            chunk, self._chunks[index] = self._chunks[index], None
            on_its_way = any(not sent.done for sent in self._sending.pop(index, ()))
        return replace(chunk, data=chunk.data.copy()) if chunk and on_its_way else chunk

    def close(self) -> None:
        """Stop serving."""
        self._stop.set()
        self._thread.join(timeout=5)
        self._pool.shutdown()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._socket, *self._gate.sockets):
            poller.register(socket, zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(POLL_MS))
            if any(socket in ready for socket in self._gate.sockets):
                self._gate.look()
            if self._socket in ready:
                self._answer(self._socket.recv_multipart())
        self._gate.close()

    def _answer(self, frames: list[bytes]) -> None:
        with self._offer:  # no chunk is withdrawn before it is known to be on its way
            payload: list[Any] = []
            try:
                header, payload = self._reply(unpack(frames[-1]))
            except R3LError as error:
                self.sent["refused"] += 1
                header = to_wire(error)
            try:
                sent = self._socket.send_multipart(
                    [frames[0], pack(header), *payload], copy=False, track=True
                )
            except zmq.ZMQError as error:
                log.info("weights: a subscriber left before its answer (%s)", error)
            else:
                if sent and header.get("full"):
                    others = self._sending.get(header["index"], ())
                    under_way = [other for other in others if not other.done]
                    self._sending[header["index"]] = [*under_way, sent]

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
                chunk = self._chunks[index] if 0 <= index < len(self._chunks) else None
                if chunk is None or origin != self.origin or chunk.version != version:
                    return reply | {"gone": True}, []
                return self._chunk(reply, chunk, have)
        raise RecordError(f"weights: no such request {str(request)[:200]}")

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


def _router(context: zmq.Context[Any], link: Link) -> zmq.Socket[bytes]:
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDBUF, link.send_buffer)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, HIGH_WATER)
    router.setsockopt(zmq.SNDTIMEO, 0)  # who does not read loses answers, nobody waits for it
    router.setsockopt(zmq.MAXMSGSIZE, 1 << 16)
    router.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30000)
    return router


def _in_threads(
    pool: ThreadPoolExecutor,
    function: Callable[[int, Sequence[Piece]], Chunk],
    chunks: Iterable[Sequence[Piece]],
) -> Iterator[Chunk]:
    """`function` of each chunk's index and pieces, in order, a few at the same time; none of them
    runs any more when this ends, however it ends."""
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


def _figures(chunks: Sequence[Chunk], layout: Layout) -> dict[str, float]:
    newest = [c.patches[-1] for c in chunks if c.patches]
    unpatched = sum(len(c.data) for c in chunks if not c.patches)
    elements = max(layout.total_bytes // layout.width, 1)
    return {
        "full_bytes": float(layout.total_bytes),
        "patch_bytes": float(sum(len(p.body) for p in newest) + unpatched),
        "patch_density": (sum(p.changed for p in newest) + unpatched / layout.width) / elements,
    }

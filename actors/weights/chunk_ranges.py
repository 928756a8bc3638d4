"""Splits the chunks of a weight set into byte ranges to request, and joins the replies.

    next ─► ChunkRange (chunk, at, size) ─► publisher ─► add ─► CompleteChunk after the last byte

A range takes about a second on the link. So a deadline applies to one range, not to a whole chunk.
A lost connection loses little: received bytes are kept while their version is wanted.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from actors.weights.staging import StagedWeights
from r3l.errors import WeightsError
from r3l.weights.manifest import CHUNK_BYTES, Manifest

SMALLEST, FIRST = 16 << 10, 64 << 10  # bytes of a range
FAST_S, SLOW_S = 0.25, 2.0  # wait for a reply: less makes ranges larger, more smaller
PATCH_SLACK = 64 << 10  # bytes that patches may take beyond their chunk


class ChunkRange(NamedTuple):
    """A range in the chunk with index `chunk`: at most `size` bytes, beginning at byte `at`."""

    chunk: int
    at: int
    size: int


class CompleteChunk(NamedTuple):
    """All data of a chunk: one frame with the whole chunk if `full`, else a frame per patch."""

    chunk: int
    full: bool
    frames: list[memoryview]


@dataclass
class RangeSize:
    """Adapts the size of the next range, in bytes, to the speed of the link."""

    size: int = FIRST

    def received(self, requested: ChunkRange, nbytes: int, seconds: float) -> None:
        """Records a reply of `nbytes` bytes that took `seconds` to arrive."""
        if nbytes < requested.size or requested.size != self.size:
            return  # the end of a chunk, or requested with another size
        if seconds < FAST_S:
            self.size = min(2 * self.size, CHUNK_BYTES)
        elif seconds > SLOW_S:
            self.size = max(self.size // 2, SMALLEST)

    def stalled(self) -> None:
        """Records that a deadline passed without a reply."""
        self.size = max(self.size // 8, SMALLEST)


@dataclass
class PartialChunk:
    """A partly received chunk.

    `have`: the version to which the patches apply. `lengths`: bytes of each frame.
    `received` and `requested` count bytes from the start of `data`.
    """

    have: int
    full: bool
    lengths: tuple[int, ...]
    data: bytearray
    received: int = 0
    requested: int = 0


@dataclass
class ChunkRanges:
    """Tracks which ranges of one version were received, even across broken connections."""

    of: tuple[str, int] = ("", -1)
    _manifest: Manifest | None = None
    _partial: dict[int, PartialChunk] = field(default_factory=dict)
    _unrequested: deque[int] = field(default_factory=deque)

    def begin(self, manifest: Manifest, staged: StagedWeights) -> None:
        """Begins or resumes a fetch of the manifest's set. Drops received bytes of other sets."""
        if self.of != (manifest.origin, manifest.version):
            self.of = (manifest.origin, manifest.version)
            self._partial.clear()
        self._manifest = manifest
        missing = staged.missing(manifest)
        for index in list(self._partial):
            chunk = self._partial[index]
            chunk.requested = chunk.received
            if index not in missing or chunk.have != staged.versions[index]:
                del self._partial[index]
        self._unrequested = deque(index for index in missing if index not in self._partial)

    def next(self, size: int) -> ChunkRange | None:
        """Returns the next range to request, at most `size` bytes, or None if all are requested."""
        for index, chunk in self._partial.items():
            if left := len(chunk.data) - chunk.requested:
                wanted = ChunkRange(index, chunk.requested, min(size, left))
                chunk.requested += wanted.size
                return wanted
        return ChunkRange(self._unrequested.popleft(), 0, size) if self._unrequested else None

    def add(
        self,
        requested: ChunkRange,
        have: int,
        header: dict[str, Any],
        payload: Sequence[memoryview],
    ) -> CompleteChunk | None:
        """Takes a reply. Returns the chunk if it is now complete. `have`: version of the staged
        chunk. Raises WeightsError if the reply does not fit the request."""
        full, lengths, body = self._checked(requested, header, payload)
        chunk = self._partial.get(requested.chunk)
        if chunk is None:
            if len(body) == sum(lengths):
                return CompleteChunk(requested.chunk, full, _split(body, lengths))
            total = sum(lengths)
            chunk = PartialChunk(
                have, full, lengths, bytearray(total), requested=requested.at + len(body)
            )
            self._partial[requested.chunk] = chunk
        if (chunk.full, chunk.lengths, chunk.received) != (full, lengths, requested.at):
            del self._partial[requested.chunk]
            raise WeightsError(
                "weights: a range does not continue the previous range", cause="out_of_step"
            )
        chunk.data[requested.at : requested.at + len(body)] = body
        chunk.received += len(body)
        if chunk.received < len(chunk.data):
            return None
        del self._partial[requested.chunk]
        return CompleteChunk(requested.chunk, full, _split(memoryview(chunk.data), lengths))

    def _checked(
        self, requested: ChunkRange, header: dict[str, Any], payload: Sequence[memoryview]
    ) -> tuple[bool, tuple[int, ...], memoryview]:
        """Returns (full, lengths of the frames, bytes of the reply). Raises WeightsError."""
        assert self._manifest is not None
        full, lengths = header.get("full"), header.get("lengths")
        if isinstance(full, bool) and isinstance(lengths, list) and len(payload) == 1:
            span = self._manifest.layout.span(requested.chunk)
            # False lengths could use up the memory.
            if _fits(requested, span.stop - span.start, full, lengths, len(payload[0])):
                return full, tuple(lengths), payload[0]
        raise WeightsError(
            f"weights: a reply has no valid part of chunk {requested.chunk}", cause="malformed"
        )


def _fits(requested: ChunkRange, size: int, full: bool, lengths: list[Any], nbytes: int) -> bool:
    """Returns whether a reply of `nbytes` fits the requested range and the chunk's `size`."""
    if not all(type(length) is int and length >= 0 for length in lengths):
        return False
    total = sum(lengths)
    possible = lengths == [size] if full else total <= size + PATCH_SLACK
    return possible and nbytes == min(requested.size, total - requested.at)


def _split(data: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    ends = accumulate(lengths, initial=0)
    return [data[start:end] for start, end in pairwise(ends)]

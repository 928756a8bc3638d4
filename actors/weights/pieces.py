"""Pieces of a weight set: what has come of each chunk, and what to request next.

    next ─► Piece (chunk, at, size) ─► publisher ─► add ─► a chunk's frames, when its last byte came

A chunk comes in pieces of about a second each, so that a deadline can be for the next bytes, and so
that little is lost with a connection: bytes that came are kept as long as their version is wanted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from actors.weights.staging import StagedWeights
from r3l.errors import WeightsError
from r3l.weights.manifest import CHUNK_BYTES, Manifest

SMALLEST, FIRST = 16 << 10, 64 << 10  # bytes of a piece
FAST_S, SLOW_S = 0.25, 2.0  # between two pieces, for larger or smaller ones
PATCH_SLACK = 64 << 10  # bytes that patches may take beyond their chunk


class Piece(NamedTuple):
    """`size` bytes of what a publisher sends for chunk number `chunk`, from byte `at` on."""

    chunk: int
    at: int
    size: int


class Whole(NamedTuple):
    """What was sent for chunk number `chunk`: its bytes (`full`, one frame), or patches."""

    chunk: int
    full: bool
    frames: list[memoryview]


@dataclass
class Pace:
    """The size of the next piece, in bytes: it follows the link."""

    size: int = FIRST

    def came(self, piece: Piece, nbytes: int, seconds: float) -> None:
        """A piece came `seconds` after the one before."""
        if nbytes < piece.size or piece.size != self.size:
            return  # the end of a chunk, or requested at another pace
        if seconds < FAST_S:
            self.size = min(2 * self.size, CHUNK_BYTES)
        elif seconds > SLOW_S:
            self.size = max(self.size // 2, SMALLEST)

    def stalled(self) -> None:
        """Nothing came before the deadline."""
        self.size = max(self.size // 8, SMALLEST)


@dataclass
class _Begun:
    """A chunk of which something came. `lengths`: of its frames; `came`, `asked`: bytes."""

    have: int
    full: bool
    lengths: tuple[int, ...]
    data: bytearray
    came: int = 0
    asked: int = 0


@dataclass
class Pieces:
    """The pieces of one version, over several connections."""

    of: tuple[str, int] = ("", -1)
    _manifest: Manifest | None = None
    _begun: dict[int, _Begun] = field(default_factory=dict)
    _untouched: deque[int] = field(default_factory=deque)

    def begin(self, manifest: Manifest, staged: StagedWeights) -> None:
        """Begin to fetch the manifest's set, or go on with it; what came of another is dropped."""
        if self.of != (manifest.origin, manifest.version):
            self.of = (manifest.origin, manifest.version)
            self._begun.clear()
        self._manifest = manifest
        missing = staged.missing(manifest)
        for index in list(self._begun):
            chunk = self._begun[index]
            chunk.asked = chunk.came
            if index not in missing or chunk.have != staged.versions[index]:
                del self._begun[index]
        self._untouched = deque(index for index in missing if index not in self._begun)

    @property
    def held(self) -> int:
        """Bytes that came of chunks that are not whole."""
        return sum(chunk.came for chunk in self._begun.values())

    def next(self, size: int) -> Piece | None:
        """The piece to request next, of at most `size` bytes; None: all are requested."""
        for index, chunk in self._begun.items():
            if left := len(chunk.data) - chunk.asked:
                piece = Piece(index, chunk.asked, min(size, left))
                chunk.asked += piece.size
                return piece
        return Piece(self._untouched.popleft(), 0, size) if self._untouched else None

    def add(
        self, piece: Piece, have: int, header: dict[str, Any], payload: Sequence[memoryview]
    ) -> Whole | None:
        """Take in a piece, requested by one who has version `have` of the chunk. Returns the chunk
        when it is whole. Raises WeightsError for a reply that does not fit."""
        full, lengths, body = self._checked(piece, header, payload)
        chunk = self._begun.get(piece.chunk)
        if chunk is None:
            if len(body) == sum(lengths):
                return Whole(piece.chunk, full, _split(body, lengths))
            total = sum(lengths)
            chunk = _Begun(have, full, lengths, bytearray(total), asked=piece.at + len(body))
            self._begun[piece.chunk] = chunk
        if (chunk.full, chunk.lengths, chunk.came) != (full, lengths, piece.at):
            del self._begun[piece.chunk]
            raise WeightsError("weights: a piece that does not fit the last", cause="out_of_step")
        chunk.data[piece.at : piece.at + len(body)] = body
        chunk.came += len(body)
        if chunk.came < len(chunk.data):
            return None
        del self._begun[piece.chunk]
        return Whole(piece.chunk, full, _split(memoryview(chunk.data), lengths))

    def _checked(
        self, piece: Piece, header: dict[str, Any], payload: Sequence[memoryview]
    ) -> tuple[bool, tuple[int, ...], memoryview]:
        """(full, lengths of all frames, the bytes) of a reply; its numbers bound what memory this
        process takes."""
        assert self._manifest is not None
        full, lengths = header.get("full"), header.get("lengths")
        if isinstance(full, bool) and isinstance(lengths, list) and len(payload) == 1:
            span = self._manifest.layout.span(piece.chunk)
            if _fits(piece, span.stop - span.start, full, lengths, len(payload[0])):
                return full, tuple(lengths), payload[0]
        raise WeightsError(
            f"weights: a reply that is no piece of chunk {piece.chunk}", cause="malformed"
        )


def _fits(piece: Piece, size: int, full: bool, lengths: list[Any], nbytes: int) -> bool:
    """Whether `nbytes` can be that piece of a chunk of `size` bytes sent in frames of `lengths`."""
    if not all(type(length) is int and length >= 0 for length in lengths):
        return False
    total = sum(lengths)
    possible = lengths == [size] if full else total <= size + PATCH_SLACK
    return possible and nbytes == min(piece.size, total - piece.at)


def _split(data: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """The frames of these lengths."""
    ends = accumulate(lengths, initial=0)
    return [data[start:end] for start, end in pairwise(ends)]

"""The layout of a weight set: tensors as bytes, cut into chunks, and the manifest of checksums.

The tensors of a model are placed end to end under their checkpoint names, each aligned to 64 bytes.
The manifest has a checksum of every chunk, so that an engine loads exactly the published set,
however it arrived. This module handles tensors as raw bytes and needs no torch.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from r3l.errors import WeightsError

ALIGNMENT = 64
CHUNK_BYTES = 8 << 20
MANIFEST_LIMIT = 16 << 20  # bytes of a manifest on the wire
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
Bytes = npt.NDArray[np.uint8]
Size = Annotated[int, msgspec.Meta(ge=0)]
Piece = tuple[int, Bytes]
"""A byte offset in a chunk, and the bytes that begin there (uint8 [n])."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: checkpoint name, dtype name (a key of DTYPES), shape and byte offset."""

    name: str
    dtype: str
    shape: tuple[Size, ...]
    offset: Size

    @property
    def nbytes(self) -> int:
        """The tensor's size in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype]


@dataclass(frozen=True)
class Layout:
    """The position of every tensor in a set, and the set's size in bytes."""

    tensors: tuple[TensorEntry, ...]
    total_bytes: Size

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> Self:
        """Lays out tensors `(name, dtype, shape)` one after the other."""
        entries, offset = [], 0
        for name, dtype, shape in tensors:
            entries.append(TensorEntry(name, dtype, tuple(shape), offset))
            offset += -(-entries[-1].nbytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(entries), offset)

    @property
    def num_chunks(self) -> int:
        """The number of chunks. Each has CHUNK_BYTES, but the last may be shorter."""
        return -(-self.total_bytes // CHUNK_BYTES)

    @property
    def width(self) -> int:
        """The size of one element of a patch, in bytes: the size of the narrowest dtype."""
        return min((DTYPES[t.dtype] for t in self.tensors), default=2)

    def span(self, index: int) -> slice:
        """Returns the slice of the set's bytes that chunk `index` covers."""
        return slice(index * CHUNK_BYTES, min((index + 1) * CHUNK_BYTES, self.total_bytes))

    def cut(self, data: Iterable[Bytes]) -> Iterator[list[Piece]]:
        """Cuts tensors at chunk boundaries. Yields the pieces of each chunk. `data`: each tensor's
        bytes (uint8 [n]), in the layout's order."""
        pieces: list[Piece] = []
        index = 0
        for entry, source in zip(self.tensors, data, strict=True):
            done = 0
            while done < entry.nbytes:
                at = entry.offset + done - index * CHUNK_BYTES
                if at >= CHUNK_BYTES:
                    yield pieces
                    pieces, index = [], index + 1
                    continue
                count = min(entry.nbytes - done, CHUNK_BYTES - at)
                pieces.append((at, source[done : done + count]))
                done += count
        if self.total_bytes:
            yield pieces


@dataclass(frozen=True)
class Adapters:
    """Describes a set of adapters (r3l.weights.low_rank)."""

    base: str  # digest of the base model's folder
    dtype: str  # of the learner's base model
    scaling: float  # factor of the product B·A


@dataclass(frozen=True)
class Manifest:
    """Describes a published weight set. `origin`: the publisher's id, new at each start. Two
    publishers may give different weights the same version."""

    origin: str
    version: Size
    layout: Layout
    checksums: tuple[int, ...]
    sums: tuple[int, int] | None = None  # r3l.weights.sums; None if there are several dtypes
    adapters: Adapters | None = None  # None for a whole model

    @property
    def digest(self) -> str:
        """A hexadecimal hash of the layout, all tensors and `adapters`. The publisher and the
        version do not matter."""
        adapted = msgspec.msgpack.encode((self.layout, self.checksums, self.adapters))
        return hashlib.blake2b(adapted, digest_size=16).hexdigest()

    def to_wire(self) -> Any:
        """Returns plain values for a message header."""
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self))  # tuples become lists

    @classmethod
    def from_wire(cls, values: Any) -> Self:
        """Rebuilds and checks a manifest. Raises WeightsError if it is malformed."""
        try:
            manifest = msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise WeightsError(f"malformed weight manifest: {error}") from None
        layout = manifest.layout
        fits = all(
            t.dtype in DTYPES and t.offset + t.nbytes <= layout.total_bytes for t in layout.tensors
        )
        if not fits or len(manifest.checksums) != layout.num_chunks:
            raise WeightsError("weight manifest: a tensor or chunk is outside the set")
        return manifest


def fingerprint(engine: str, manifest: Manifest) -> str:
    """Returns the fingerprint of the weights that sampled an attempt:

    <hash of what the engine held, in its layout> / <digest of the published set that it loaded>
    """
    return f"{engine}/{manifest.digest}"


def digest_of(fingerprint: str) -> str:
    """Returns the digest part of a fingerprint; "" if it has none."""
    return fingerprint.partition("/")[2]


def fingerprints_agree(one: str, other: str) -> bool:
    """Whether two fingerprints can belong to the same weights. Compares their hashes, and their
    digests if both have one."""
    (first, _, first_set), (second, _, second_set) = one.partition("/"), other.partition("/")
    return first == second and (not first_set or not second_set or first_set == second_set)

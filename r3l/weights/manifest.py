"""The layout of a weight set: tensors as bytes, cut into chunks, and the manifest of checksums.

A set is every tensor of a model under its checkpoint name, laid end to end, each aligned to
64 bytes, and cut into chunks. The manifest has a checksum of every chunk, so that an engine loads
exactly the published set, whichever way it arrived. Tensors are raw bytes here, without torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from r3l.codec import pack
from r3l.errors import WeightsError

ALIGNMENT = 64
CHUNK_BYTES = 8 << 20
MANIFEST_LIMIT = 16 << 20  # bytes of a manifest on the wire
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
Bytes = npt.NDArray[np.uint8]
Piece = tuple[int, Bytes]
"""Where in a chunk, in bytes, and the bytes themselves (uint8 [n])."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: checkpoint name, dtype name (a key of DTYPES), shape and byte offset."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * DTYPES[self.dtype]


@dataclass(frozen=True)
class Layout:
    """Position of every tensor in a set, and the set's size in bytes."""

    tensors: tuple[TensorEntry, ...]
    total_bytes: int

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> Layout:
        """Lay out `(name, dtype, shape)` one after the other."""
        entries, offset = [], 0
        for name, dtype, shape in tensors:
            entries.append(TensorEntry(name, dtype, tuple(shape), offset))
            offset += -(-entries[-1].nbytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(entries), offset)

    @property
    def num_chunks(self) -> int:
        """Chunks of CHUNK_BYTES, the last one shorter."""
        return -(-self.total_bytes // CHUNK_BYTES)

    @property
    def width(self) -> int:
        """Bytes of an element as patches see it: of the narrowest dtype."""
        return min((DTYPES[t.dtype] for t in self.tensors), default=2)

    def span(self, index: int) -> slice:
        """The bytes of the set that chunk `index` covers."""
        return slice(index * CHUNK_BYTES, min((index + 1) * CHUNK_BYTES, self.total_bytes))

    def cut(self, data: Iterable[Bytes]) -> Iterator[list[Piece]]:
        """The pieces of tensors in each chunk, and their positions in it.

        `data`: the tensors' bytes (uint8 arrays), in the layout's order; read one at a time.
        """
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
    """Of a set of adapters (r3l.weights.low_rank): the digest of the base model's folder, the
    dtype in which the learner has that model, the factor of the adapters' products."""

    base: str
    dtype: str
    scaling: float


@dataclass(frozen=True)
class Manifest:
    """A published set: its publisher, the policy version, the layout, each chunk's checksum.

    `origin` is unique to one start of a publisher: two sets of the same version from different
    origins may differ. `sums`: over all elements (r3l.weights.sums), None if they have several
    dtypes. `adapters`: None if the set is a whole model.
    """

    origin: str
    version: int
    layout: Layout
    checksums: tuple[int, ...]
    sums: tuple[int, int] | None = None
    adapters: Adapters | None = None

    @property
    def digest(self) -> str:
        """Hash of the set: names, formats, shapes and bytes of all tensors and what they adapt, in
        hexadecimal. The same for equal sets of different publishers and versions."""
        whole = self.to_wire()
        of = {name: whole[name] for name in ("tensors", "total_bytes", "checksums", "adapters")}
        return hashlib.blake2b(pack(of, MANIFEST_LIMIT), digest_size=16).hexdigest()

    def to_wire(self) -> dict[str, Any]:
        """Plain values for a message header."""
        tensors = [asdict(t) | {"shape": list(t.shape)} for t in self.layout.tensors]
        return {
            "origin": self.origin,
            "version": self.version,
            "tensors": tensors,
            "total_bytes": self.layout.total_bytes,
            "checksums": list(self.checksums),
            "sums": None if self.sums is None else list(self.sums),
            "adapters": None if self.adapters is None else asdict(self.adapters),
        }

    @classmethod
    def from_wire(cls, values: Any) -> Manifest:
        """Rebuild and check a manifest; raises WeightsError."""
        try:
            tensors = tuple(
                TensorEntry(
                    str(t["name"]),
                    str(t["dtype"]),
                    tuple(int(extent) for extent in t["shape"]),
                    int(t["offset"]),
                )
                for t in values["tensors"]
            )
            layout = Layout(tensors, int(values["total_bytes"]))
            checksums = tuple(int(value) for value in values["checksums"])
            fits = all(0 <= t.offset <= layout.total_bytes - t.nbytes for t in tensors)
            fits = fits and all(extent >= 0 for t in tensors for extent in t.shape)
            fits = fits and int(values["version"]) >= 0
            sums = values["sums"]
            if sums is not None:
                first, second = sums
                sums = int(first), int(second)
            adapters = values["adapters"]
            if adapters is not None:
                base, dtype = str(adapters["base"]), str(adapters["dtype"])
                adapters = Adapters(base, dtype, float(adapters["scaling"]))
            origin, version = str(values["origin"]), int(values["version"])
            manifest = cls(origin, version, layout, checksums, sums, adapters)
        except (KeyError, TypeError, ValueError) as error:
            raise WeightsError(f"malformed weight manifest: {error!r}") from None
        if not fits or len(checksums) != layout.num_chunks:
            raise WeightsError(
                "weight manifest: a tensor or chunk lies outside the set, or its version is below 0"
            )
        return manifest

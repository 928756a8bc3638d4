"""Keeps the chunks of a published weight set (r3l.weights.manifest). A subscriber with a recent
version fetches patches instead of whole chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from r3l.errors import WeightsError
from r3l.weights.manifest import Bytes, Manifest, Piece
from r3l.weights.patch import Patch, checksum, encode

HISTORY = 0.5  # limit of the bytes of a chunk's kept patches, as a share of the chunk


@dataclass(frozen=True)
class Chunk:
    """A chunk's `data` at `version`, and recent patches. Each patch builds on the one before. The
    last patch results in `data`."""

    version: int
    data: Bytes
    checksum: int
    patches: tuple[Patch, ...] = ()

    @classmethod
    def whole(cls, data: Bytes, version: int) -> Self:
        """Makes a chunk that has no patches, so every subscriber fetches it whole."""
        return cls(version, data, checksum(data))

    def since(self, version: int) -> tuple[Patch, ...] | None:
        """Returns the patches for a subscriber that has `version`; None if it needs the whole
        chunk."""
        if version == self.version:
            return ()
        starts = [at for at, patch in enumerate(self.patches) if patch.base == version]
        return self.patches[starts[0] :] if starts else None

    def next_version(self, data: Bytes, version: int, width: int) -> Self:
        """Makes the chunk's next version. Adds a patch, and drops old patches beyond HISTORY. If
        `encode` makes no patch, drops all patches."""
        patch = encode(self.data, data, base=self.version, version=version, width=width)
        if patch is None:
            return self.whole(data, version)
        kept = [*self.patches, patch]
        while len(kept) > 1 and sum(len(p.body) for p in kept) > HISTORY * len(data):
            kept.pop(0)
        return type(self)(version, data, patch.checksum, tuple(kept))


def assemble(pieces: Sequence[Piece], size: int) -> Bytes:
    """Joins a chunk's pieces into `size` bytes, with zeros between the pieces."""
    data = np.zeros(size, np.uint8)
    for at, piece in pieces:
        data[at : at + len(piece)] = piece
    return data


def check_chunk(data: Bytes, manifest: Manifest, index: int) -> None:
    """Raises WeightsError unless `data` has the checksum of chunk `index` in the manifest."""
    if checksum(data) != manifest.checksums[index]:
        raise WeightsError(
            f"weights {manifest.version}: chunk {index} is damaged", cause="checksum", index=index
        )

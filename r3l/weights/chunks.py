"""The chunks of a weight set (r3l.weights.manifest) as their publisher keeps them.

A chunk is sent whole or as patches: it remembers how it came about from the versions before, so
whoever holds one of these needs only the patches since (r3l.weights.patch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from r3l.errors import WeightsError
from r3l.weights import patch as delta
from r3l.weights.checksum import Bytes, checksum
from r3l.weights.manifest import Manifest
from r3l.weights.patch import Patch, Piece

HISTORY = 0.5  # bytes of all patches kept of a chunk, as a share of the chunk


@dataclass(frozen=True)
class Link:
    """What suits the way to the subscribers.

    `worth`: share of changed elements from which a chunk is sent whole; `level`: how hard zstd
    tries to make patches smaller; `send_buffer`: bytes under way to one subscriber, -1: the
    system chooses.
    """

    worth: float
    level: int
    send_buffer: int


NETWORK = Link(worth=0.5, level=1, send_buffer=-1)
"""Bytes are dear. Higher levels would gain under 2 % and take several times longer."""
LOOPBACK = Link(worth=0.05, level=-100, send_buffer=512 << 10)
"""Bytes are cheap: beyond that share a patch takes longer to make than its chunk to send, and most
of that time would be zstd's. What is under way to many subscribers is still in the processor's
cache when it is received."""


@dataclass(frozen=True)
class Chunk:
    """One chunk of the set that is offered: its bytes at `version`, and the patches that lead
    there, each from the version before, the last one's result being these bytes."""

    version: int
    data: Bytes
    checksum: int
    patches: tuple[Patch, ...] = ()

    def since(self, version: int) -> tuple[Patch, ...] | None:
        """The patches for whoever holds `version` of this chunk; None: send all of it."""
        if version == self.version:
            return ()
        starts = [at for at, patch in enumerate(self.patches) if patch.base == version]
        return self.patches[starts[0] :] if starts else None

    def renewed(
        self, pieces: Sequence[Piece], version: int, width: int, link: Link | None
    ) -> Chunk:
        """The next version of this chunk, made of `pieces` in the same memory: nobody may be
        reading this one any more.

        Without a patch, so that everyone fetches it whole, where no `link` is given or it is not
        worth one. Patches that together would outweigh what they save are forgotten, oldest
        first.
        """
        patch = None
        if link is not None:
            patch = delta.encode(
                self.data,
                pieces,
                base=self.version,
                version=version,
                width=width,
                worth=link.worth,
                level=link.level,
            )
        if patch is None:
            return whole(self.data, pieces, version)
        kept = [*self.patches, patch]
        while len(kept) > 1 and sum(len(p.body) for p in kept) > HISTORY * len(self.data):
            kept.pop(0)
        return Chunk(version, self.data, patch.checksum, tuple(kept))


def whole(data: Bytes, pieces: Sequence[Piece], version: int) -> Chunk:
    """A chunk without a history: `data` filled with `pieces`, and zeros between them."""
    end = 0
    for at, piece in pieces:
        data[end:at] = 0
        end = at + len(piece)
        data[at:end] = piece
    data[end:] = 0
    return Chunk(version, data, checksum(data))


def check(data: Bytes, manifest: Manifest, index: int) -> None:
    """Raise WeightsError unless `data` is what the manifest says about chunk `index`."""
    if checksum(data) != manifest.checksums[index]:
        raise WeightsError(
            f"weights {manifest.version}: chunk {index} is damaged", cause="checksum", index=index
        )

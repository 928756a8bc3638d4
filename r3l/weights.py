"""The chunks of a weight set (r3l.manifest) as their publisher keeps them.

A chunk is sent whole or as patches: it remembers how it came about from the versions before, so
whoever holds one of these needs only the patches since (r3l.delta).
"""

from __future__ import annotations

from dataclasses import dataclass

from r3l import delta
from r3l.checksum import Bytes, checksum
from r3l.delta import Patch
from r3l.errors import WeightsError
from r3l.manifest import Manifest

HISTORY = 0.5  # bytes of all patches kept of a chunk, as a share of the chunk


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

    def renewed(self, data: Bytes, version: int, width: int, worth: float) -> Chunk:
        """This chunk with `data` as its next version.

        Without a patch, so that everyone fetches it whole, where more than a share `worth` of its
        elements changed. Patches that together would outweigh what they save are forgotten,
        oldest first.
        """
        patch = None
        if worth and len(data) == len(self.data):
            patch = delta.encode(
                self.data, data, base=self.version, version=version, width=width, worth=worth
            )
        if patch is None:
            return whole(data, version)
        kept = [*self.patches, patch]
        while len(kept) > 1 and sum(len(p.body) for p in kept) > HISTORY * len(data):
            kept.pop(0)
        return Chunk(version, data, patch.checksum, tuple(kept))


def whole(data: Bytes, version: int) -> Chunk:
    """A chunk without a history."""
    return Chunk(version, data, checksum(data))


def check(data: Bytes, manifest: Manifest, index: int) -> None:
    """Raise WeightsError unless `data` is what the manifest says about chunk `index`."""
    if checksum(data) != manifest.checksums[index]:
        raise WeightsError(
            f"weights {manifest.version}: chunk {index} is damaged", cause="checksum", index=index
        )

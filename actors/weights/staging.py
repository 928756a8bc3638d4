"""Stages a weight set: one copy in shared memory, updated chunk by chunk.

The copy is an anonymous file (memfd), which vanishes with the last process that uses it. The
engine's workers on this host map it by `path` while the actor keeps it open.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from r3l.errors import WeightsError
from r3l.weights.chunks import check_chunk
from r3l.weights.manifest import Layout, Manifest
from r3l.weights.patch import Patch, apply

if TYPE_CHECKING:
    from torch import Tensor

UNKNOWN = -1


class StagedWeights:
    """Holds a weight set in shared memory. `versions`: each chunk's version, or UNKNOWN. `origin`:
    the publisher's id."""

    def __init__(self, layout: Layout, origin: str) -> None:
        self.layout, self.origin = layout, origin
        self.versions = [UNKNOWN] * layout.num_chunks
        self._file = os.memfd_create("r3l-weights", os.MFD_CLOEXEC)
        os.ftruncate(self._file, max(layout.total_bytes, 1))
        self._map = mmap.mmap(self._file, max(layout.total_bytes, 1))
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)

    @property
    def path(self) -> str:
        """The file's path for other processes on this host. It is valid while this process runs."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def copy(self) -> StagedWeights:
        """Copies the set to memory of its own."""
        copy = StagedWeights(self.layout, self.origin)
        copy.versions = self.versions.copy()
        copy._bytes[:] = self._bytes
        return copy

    def missing(self, manifest: Manifest) -> list[int]:
        """Returns the chunks that do not have the manifest's version."""
        return [i for i, version in enumerate(self.versions) if version != manifest.version]

    def replace(self, index: int, manifest: Manifest, data: memoryview) -> None:
        """Stores a whole chunk. Raises WeightsError if the chunk is damaged."""
        chunk = np.frombuffer(data, dtype=np.uint8)
        span = self.layout.span(index)
        if len(chunk) != span.stop - span.start:
            raise WeightsError(
                f"weights {manifest.version}: chunk {index} has {len(chunk)} bytes, a wrong size",
                cause="checksum",
            )
        check_chunk(chunk, manifest, index)
        self.versions[index] = UNKNOWN
        self._bytes[span] = chunk
        self.versions[index] = manifest.version

    def patch(self, index: int, manifest: Manifest, frames: Sequence[memoryview]) -> None:
        """Patches a chunk. Raises WeightsError if a patch is damaged or belongs to another version.
        The next fetch then requests the whole chunk."""
        held, version = self._bytes[self.layout.span(index)], self.versions[index]
        self.versions[index] = UNKNOWN
        for frame in frames:
            patch = Patch.from_wire(frame)
            apply(patch, held, version=version)
            version = patch.version
        if version != manifest.version or not frames or patch.checksum != manifest.checksums[index]:
            raise WeightsError(
                f"weights {manifest.version}: the patches of chunk {index} do not "
                "produce this version",
                cause="patch_damaged",
            )
        self.versions[index] = manifest.version

    def close(self) -> None:
        """Closes the file. The memory is freed when no process maps the file."""
        os.close(self._file)


def staged_tensors(
    path: str, layout: Layout, *, shared: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yields each (name, tensor) of a staged file. `shared`: changing a tensor changes the file."""
    import torch

    data = torch.from_file(path, shared=shared, size=layout.total_bytes, dtype=torch.uint8)
    for entry in layout.tensors:
        flat = data[entry.offset : entry.offset + entry.nbytes]
        yield entry.name, flat.view(getattr(torch, entry.dtype)).view(entry.shape)

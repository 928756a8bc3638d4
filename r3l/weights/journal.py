"""The weight journal: keeps published versions on disk and rebuilds each of them bit for bit.

    journal/
        000000.weights   an anchor: every chunk whole
        000001.weights   the changes since 000000: a patch or the whole of each chunk
        …

A file is a head and one frame for each chunk. A frame is what actors receive: a patch
(r3l.weights.patch) or the whole chunk. The head begins with the length of its data (8 bytes) and
the data's XXH3-64 checksum. The data (msgpack) is the manifest (r3l.weights.manifest), the version
that the file builds on, and the frames' lengths. A file gets its name only when it is complete.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_digest

from r3l.codec import pack, unpack
from r3l.errors import R3LError, UserError
from r3l.files.whole_file import BUILDING, write_whole
from r3l.weights.chunks import Chunk, check_chunk
from r3l.weights.manifest import MANIFEST_LIMIT, Bytes, Manifest
from r3l.weights.patch import Patch, apply

END = ".weights"
HEAD_LIMIT = 2 * MANIFEST_LIMIT
NONE, DAMAGED = -1, -2


@dataclass(frozen=True)
class Entry:
    """The head of one file. `base`: the version that the file builds on, NONE for an anchor.
    `frames`: (full, bytes) of each frame; `full`: True for the whole chunk, False for a patch.
    `start`: the first frame's position."""

    manifest: Manifest
    base: int
    frames: tuple[tuple[bool, int], ...]
    start: int


class Journal:
    """Reads and writes the journal in `folder`. Only one process may write it.

    `versions`: how many of the newest versions are kept; 0: all. The versions that a kept
    version builds on are kept too.
    """

    def __init__(self, folder: Path, *, versions: int = 0) -> None:
        self.folder, self.versions = folder, versions
        self._bases: dict[int, int] = {}

    def held(self) -> list[int]:
        """Lists the versions that have a file, in ascending order."""
        names = (path.name.removesuffix(END) for path in self.folder.glob(f"*{END}"))
        return sorted(int(name) for name in names if name.isdigit())

    def append(self, manifest: Manifest, chunks: Sequence[Chunk]) -> int:
        """Writes a version. Returns its size on disk in bytes, or 0 if the journal already has it.

        After a resume, a learner may write a version again, with other bytes. Then the old version
        and all later versions are removed first. An OSError leaves the earlier versions in place.
        """
        version = manifest.version
        if not self._bases:
            self._bases = {v: self._base_of(v) for v in self.held()}
        if version in self._bases:
            if self._is_same(manifest):
                return 0
            for old in sorted(self._bases, reverse=True):
                if old >= version:
                    self._remove(old)
        base = max((c.patches[-1].base for c in chunks if c.patches), default=NONE)
        last = max(self._bases, default=NONE)
        if last != base or self._bases.get(last) == DAMAGED:
            base = NONE
        size = self._write(manifest, chunks, base)
        self._bases[version] = base
        self._forget()
        return size

    def rebuild(self, version: int) -> tuple[Manifest, Bytes]:
        """Rebuilds the manifest and all bytes (uint8 [total]) of a version. Raises UserError if a
        file is missing or damaged."""
        chain = [self._entry(version)]
        while chain[-1].base != NONE:
            chain.append(self._entry(chain[-1].base, needed_by=version))
        data = np.zeros(chain[0].manifest.layout.total_bytes, np.uint8)
        before = NONE
        for entry in reversed(chain):
            path = self.path(entry.manifest.version)
            try:
                self._apply(entry, path, data, before)
            except (R3LError, OSError, ValueError) as error:
                raise _damaged(path, error) from None
            before = entry.manifest.version
        return chain[0].manifest, data

    def path(self, version: int) -> Path:
        return self.folder / f"{version:06d}{END}"

    def _apply(self, entry: Entry, path: Path, data: Bytes, before: int) -> None:
        """Updates `data` in place to the version of `entry`. `before`: the version of `data`."""
        with path.open("rb") as file:
            file.seek(entry.start)
            for index, (full, length) in enumerate(entry.frames):
                frame = file.read(length)
                held = data[entry.manifest.layout.span(index)]
                if full:
                    held[:] = np.frombuffer(frame, np.uint8)
                else:
                    apply(Patch.from_wire(frame), held, version=before)
                check_chunk(held, entry.manifest, index)

    def _entry(self, version: int, needed_by: int | None = None) -> Entry:
        """Reads the head of a version's file."""
        path = self.path(version)
        if not path.is_file():
            raise UserError(self._gap(version, needed_by))
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "big")
                checksum, packed = file.read(8), file.read(min(length, HEAD_LIMIT))
            if checksum != xxh3_64_digest(packed):
                raise _damaged(path, "its head has the wrong checksum")
            head = unpack(packed, HEAD_LIMIT)
            frames = tuple((bool(full), int(size)) for full, size in head["frames"])
            manifest, base = Manifest.from_wire(head["manifest"]), int(head["base"])
            fits = manifest.version == version > base >= NONE
            fits = fits and len(frames) == manifest.layout.num_chunks
            whole = 16 + length + sum(size for _, size in frames) == path.stat().st_size
        except (R3LError, OSError, LookupError, TypeError, ValueError) as error:
            raise _damaged(path, error) from None
        if not fits or not whole:
            raise _damaged(path, "its size or its head is wrong")
        return Entry(manifest, base, frames, 16 + length)

    def _gap(self, version: int, needed_by: int | None) -> str:
        held = self.held()
        if needed_by is not None:
            return (
                f"journal {self.folder}: version {needed_by} builds on version {version}, which is "
                "missing; copy its file back, or choose the next anchor or a later version"
            )
        if not held:
            return (
                f"journal {self.folder}: holds no versions; to keep a run's newest N, set "
                "learner.journal_versions=N"
            )
        near = sorted(sorted(held, key=lambda v: abs(v - version))[:2])
        return (
            f"journal {self.folder}: version {version} is missing (it holds {len(held)} versions, "
            f"{held[0]} to {held[-1]}; nearest {' and '.join(map(str, near))})"
        )

    def _is_same(self, manifest: Manifest) -> bool:
        """Whether the journal already has this version with the same bytes."""
        try:
            old = self._entry(manifest.version).manifest
        except UserError:
            return False
        return (old.layout, old.checksums) == (manifest.layout, manifest.checksums)

    def _base_of(self, version: int) -> int:
        try:
            return self._entry(version).base
        except UserError:
            return DAMAGED

    def _remove(self, version: int) -> None:
        self.path(version).unlink(missing_ok=True)
        del self._bases[version]

    def _write(self, manifest: Manifest, chunks: Sequence[Chunk], base: int) -> int:
        frames = list(_frames(chunks, whole=base == NONE))
        lengths = [[full, len(frame)] for full, frame in frames]
        head = pack({"manifest": manifest.to_wire(), "base": base, "frames": lengths}, HEAD_LIMIT)
        final = self.path(manifest.version)
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"{BUILDING}*"):  # of a learner that was killed
            left.unlink()
        begins = len(head).to_bytes(8, "big") + xxh3_64_digest(head) + head
        write_whole(final, itertools.chain([begins], (frame for _, frame in frames)))
        return len(begins) + sum(size for _, size in lengths)

    def _forget(self) -> None:
        """Removes versions beyond the limit, unless a kept version builds on them."""
        held = sorted(self._bases)
        keep = held[-self.versions] if 0 < self.versions < len(held) else held[0]
        anchors = (v for v in held if v <= keep and self._bases[v] == NONE)
        first = max(anchors, default=held[0])
        for old in (v for v in held if v < first):
            self._remove(old)


def _frames(chunks: Sequence[Chunk], *, whole: bool) -> Iterator[tuple[bool, bytes | memoryview]]:
    """Yields (full, frame) for each chunk. `full`: True for the whole chunk, False for a patch."""
    for chunk in chunks:
        if whole or not chunk.patches:
            yield True, chunk.data.data
        else:
            yield False, chunk.patches[-1].to_wire()


def _damaged(path: Path, why: object) -> UserError:
    return UserError(f"journal {path}: damaged ({why!s:.120}); copy the file back from elsewhere")

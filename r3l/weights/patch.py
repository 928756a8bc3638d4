"""Lossless patches between two versions of a stretch of weights.

A patch says which elements changed, bit for bit, and by how much:

    gaps     unchanged elements before each changed one, a byte each; 255: see `far`
    far      the gaps of 255 and more, four bytes each
    values   new minus old bit pattern as integers, zigzag coded, one byte plane after the other

Neighbouring floats have neighbouring bit patterns, so small updates are small integers whose
upper planes are zero; zstd makes little of them. A patch names the version it changes and ends
with the checksum of what must come out.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from r3l.codec import pack, unpack
from r3l.errors import RecordError, WeightsError
from r3l.weights.checksum import Bytes, checksum, sum_rows
from r3l.weights.numba_loops import compiled, prepare, read, written

FAR = 255
SAMPLE = 509  # elements between two that are looked at first; a prime meets every column
BLOCK = 512  # elements compared at a time, so that they stay in the processor's cache
Elements = npt.NDArray[Any]
_UNSIGNED: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_BYTE_OF = 0x0001020304050607  # times 1 << 8 n has n as its highest byte
Piece = tuple[int, Bytes]
"""Where in a chunk, in bytes, and the bytes themselves (uint8 [n])."""


class _Kept(threading.local):
    """What a thread codes with, kept from chunk to chunk: fresh memory would take as long to come
    by as the work that is done in it."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}
        self._memory: dict[str, Bytes] = {}

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        """One that tries as hard as `level` says."""
        if level not in self._compressors:
            self._compressors[level] = zstandard.ZstdCompressor(level, write_checksum=True)
        return self._compressors[level]

    def array(self, name: str, count: int, dtype: npt.DTypeLike) -> Elements:
        """`count` elements, until the next array of that name is asked for."""
        size = count * np.dtype(dtype).itemsize
        memory = self._memory.get(name)
        if memory is None or len(memory) < size:
            memory = self._memory[name] = np.empty(size, np.uint8)
        return memory[:size].view(dtype)


_kept = _Kept()


@dataclass(frozen=True)
class Patch:
    """Turns the bytes of version `base` into those of `version`.

    `changed`: elements of `width` bytes that differ; `far`: gaps kept in four bytes;
    `checksum`: of the whole result; `body`: the compressed streams.
    """

    base: int
    version: int
    width: int
    changed: int
    far: int
    checksum: int
    body: bytes

    def to_wire(self) -> bytes:
        """The patch as one message frame."""
        return pack(asdict(self), len(self.body) + 1024)

    @classmethod
    def from_wire(cls, frame: bytes | memoryview) -> Patch:
        """Rebuild a patch; raises WeightsError for anything else."""
        try:
            values = unpack(frame, len(frame))
            body = values.pop("body")
            if not isinstance(body, bytes):
                raise RecordError("its body is not bytes")
            return cls(**{name: int(value) for name, value in values.items()}, body=body)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(f"malformed ({error})") from None


def encode(
    held: Bytes,
    pieces: Sequence[Piece],
    *,
    base: int,
    version: int,
    width: int,
    worth: float = 1.0,
    level: int = 1,
) -> Patch | None:
    """Bring `held` (uint8 [n], bytes of `base`) up to date in place; returns the patch that does so
    elsewhere.

    `pieces` are the new bytes, in order; what lies between them stays. `level`: how hard zstd
    tries. None where more than a share `worth` of the elements changed, or where a patch would not
    be smaller than the bytes themselves; then `held` may be spoiled and must be written whole.
    Raises ValueError for pieces that reach past the end.
    """
    if any(at + len(new) > len(held) for at, new in pieces):
        raise ValueError(f"pieces that reach past {len(held)} bytes")
    parts = [
        (at, held[at : at + len(new)].view(_UNSIGNED[width]), new.view(_UNSIGNED[width]))
        for at, new in pieces
    ]
    if _clearly_more(parts, worth):
        return None
    elements = len(held) // width
    limit = int(worth * elements)
    gaps = _kept.array("gaps", limit, np.uint8)
    far = _kept.array("far", elements // FAR, "<u4")
    differences = _kept.array("differences", limit, _UNSIGNED[width])
    found = 0, 0, 0
    for at, old, new in parts:
        found = _renew(old, new, at // width, found, gaps, far, differences)
        if found[0] < 0:
            return None
    changed, far_count, _ = found
    streams = _kept.array("streams", changed + 4 * far_count + width * changed, np.uint8)
    streams[:changed] = gaps[:changed]
    streams[changed : changed + 4 * far_count] = far[:far_count].view(np.uint8)
    _to_planes(differences[:changed], streams[changed + 4 * far_count :])
    body = _kept.compressor(level).compress(streams.data)
    if len(body) >= len(held):
        return None
    return Patch(base, version, width, changed, far_count, checksum(held), body)


def _clearly_more(parts: Sequence[tuple[int, Elements, Elements]], worth: float) -> bool:
    """Whether a sample leaves no doubt that more than a share `worth` changed."""
    differ = [old[::SAMPLE] != new[::SAMPLE] for _, old, new in parts]
    changed = sum(int(np.count_nonzero(some)) for some in differ)
    return changed > 1.1 * worth * sum(map(len, differ)) + 10


def _renewing(element: str) -> str:
    arrays = f"{written(element)}, {read(element)}"
    found = ", ".join(written(kind) for kind in ("uint8", "uint32", element))
    return f"UniTuple(int64, 3)({arrays}, int64, UniTuple(int64, 3), {found})"


@compiled(_renewing("uint16"), _renewing("uint32"))
def _renew(
    held: Elements,
    renewed: Elements,
    first: int,
    before: tuple[int, int, int],
    gaps: Elements,
    far: Elements,
    differences: Elements,
) -> tuple[int, int, int]:
    """Write what differs into `held`, elements from `first` on of a chunk, and list it.

    `before`: changes and far gaps listed so far, and the element after the last change; returns
    the same with its own, or a negative count where `gaps` is too short. Which elements differ
    cannot be foretold: of a block all are compared, eight results make a word, and the words
    that are not zero are listed without a branch.
    """
    found, found_far, expected = before
    differ, some = np.zeros(BLOCK, np.uint8), np.empty(BLOCK // 8, np.int64)
    eights, one = differ.view(np.uint64), np.uint64(1)
    for start in range(0, len(held), BLOCK):
        old, new = held[start : start + BLOCK], renewed[start : start + BLOCK]
        for element in range(len(old)):
            differ[element] = old[element] != new[element]
        differ[len(old) :] = 0
        count = 0
        for eight in range(len(eights)):
            some[count] = eight
            count += eights[eight] != 0
        for eight in some[:count]:
            left = eights[eight]
            while left:
                lowest = left & (~left + one)  # 1, 1 << 8, 1 << 16 …: the byte that is set
                left ^= lowest
                element = 8 * eight + np.int64((lowest * np.uint64(_BYTE_OF)) >> np.uint64(56))
                if found == len(gaps):
                    return -1, 0, 0
                gap = first + start + element - expected
                if gap >= FAR:
                    far[found_far] = gap
                    found_far += 1
                gaps[found] = min(gap, FAR)
                differences[found] = new[element] - old[element]
                old[element] = new[element]
                expected = first + start + element + 1
                found += 1
    return found, found_far, expected


def apply(patch: Patch, held: Bytes, *, version: int) -> None:
    """Turn `held` (uint8 [n], bytes of `version`) into the patch's result, in place.

    Raises WeightsError for a patch of another version and for one that is damaged; in the second
    case `held` may be spoiled and must be fetched whole.
    """
    if patch.base != version:
        raise WeightsError(
            f"weights: a patch of version {patch.base} for bytes of version {version}",
            cause="wrong_base",
        )
    if patch.width not in _UNSIGNED or len(held) % patch.width:
        raise _damaged(f"elements of {patch.width} bytes in {len(held)}")
    elements = held.view(_UNSIGNED[patch.width])
    gaps, far, differences = _read(patch, len(elements))
    if not _add(gaps, far, differences, elements):
        raise _damaged("its gaps are miscounted or reach past the end")
    if checksum(held) != patch.checksum:
        raise _damaged("its result has another checksum")


def _read(patch: Patch, elements: int) -> tuple[Elements, Elements, Elements]:
    """(gaps, far, differences); every count is checked before memory is taken for it."""
    changed, far_count, width = patch.changed, patch.far, patch.width
    if not 0 <= far_count <= changed <= elements:
        raise _damaged(f"{changed} changes, {far_count} far, of {elements} elements")
    size = changed + 4 * far_count + width * changed
    try:
        if zstandard.frame_content_size(patch.body) != size:
            raise _damaged("its streams have another length")
        streams = _kept.decompressor.decompress(patch.body)
    except zstandard.ZstdError as error:
        raise _damaged(str(error)) from None
    gaps = np.frombuffer(streams, np.uint8, changed)
    far = np.frombuffer(streams, "<u4", far_count, changed)
    differences = _kept.array("differences", changed, _UNSIGNED[width])
    _from_planes(np.frombuffer(streams, np.uint8, offset=changed + 4 * far_count), differences)
    return gaps, far, differences


def _adding(element: str) -> str:
    return f"boolean({read('uint8')}, {read('uint32')}, {read(element)}, {written(element)})"


@compiled(_adding("uint16"), _adding("uint32"))
def _add(gaps: Elements, far: Elements, differences: Elements, elements: Elements) -> bool:
    """Add each difference at its place; False where one is past the end or `far` too short."""
    at, passed_far = np.int64(0), 0
    for change in range(len(gaps)):
        gap = np.int64(gaps[change])
        if gap == FAR:
            if passed_far == len(far):
                return False
            gap = np.int64(far[passed_far])
            passed_far += 1
        at += gap
        if at >= len(elements):
            return False
        elements[at] += differences[change]
        at += 1
    return True


@compiled(*(f"void({read(kind)}, {written('uint8')})" for kind in ("uint16", "uint32")))
def _to_planes(differences: Elements, planes: Elements) -> None:
    """Differences zigzag coded, that is 0, -1, 1, -2 … as 0, 1, 2, 3 …, modulo the width: small
    either way means small; then all lowest bytes, all of the next …"""
    count, one, sign = len(differences), np.uint32(1), np.uint32(8 * differences.itemsize - 1)
    for plane in range(differences.itemsize):
        shift = np.uint32(8 * plane)
        for at in range(count):
            difference = np.uint32(differences[at])
            coded = (difference << one) ^ (np.uint32(0) - (difference >> sign))
            planes[plane * count + at] = coded >> shift


@compiled(*(f"void({read('uint8')}, {written(kind)})" for kind in ("uint16", "uint32")))
def _from_planes(planes: Elements, differences: Elements) -> None:
    """The inverse of `_to_planes`."""
    count, one = len(differences), np.uint32(1)
    differences[:] = 0
    for plane in range(differences.itemsize):
        shift = np.uint32(8 * plane)
        for at in range(count):
            differences[at] |= np.uint32(planes[plane * count + at]) << shift
    for at in range(count):
        coded = np.uint32(differences[at])
        differences[at] = (coded >> one) ^ (np.uint32(0) - (coded & one))


def warm_up() -> None:
    """Compile what encodes and applies patches, before an update has to wait for it."""
    prepare(_renew, _to_planes, _from_planes, _add, sum_rows)


def _damaged(what: str) -> WeightsError:
    return WeightsError(f"weights: a damaged patch, {what}", cause="patch_damaged")

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

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from r3l.checksum import Bytes, checksum, sum_rows
from r3l.codec import pack, unpack
from r3l.compiled import compiled, prepare, read, written
from r3l.errors import RecordError, WeightsError

LEVEL = 1  # zstd; higher levels gain under 2 % on such data and take several times longer
FAR = 255
SAMPLE = 509  # elements between two that are looked at first; a prime meets every column
BLOCK = 1024  # elements compared at a time, so that they stay in the processor's cache
Elements = npt.NDArray[Any]
_UNSIGNED: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_SIGNED: dict[int, np.dtype[Any]] = {2: np.dtype("<i2"), 4: np.dtype("<i4")}


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
    old: Bytes, new: Bytes, *, base: int, version: int, width: int, worth: float = 1.0
) -> Patch | None:
    """The patch from `old` to `new` (both uint8 [n], n a multiple of `width`).

    None where more than a share `worth` of the elements changed, or where it would not be
    smaller than the bytes themselves.
    """
    if len(old) != len(new):
        raise ValueError(f"a patch from {len(old)} bytes to {len(new)}")
    before, after = old.view(_UNSIGNED[width]), new.view(_UNSIGNED[width])
    if _clearly_more(before, after, worth):
        return None
    limit = int(worth * len(after))
    gaps = np.empty(limit, dtype=np.uint8)
    far = np.empty(len(after) // FAR, dtype="<u4")
    differences = np.empty(limit, dtype=_UNSIGNED[width])
    in_words = len(new) // 8 * 8
    words = old[:in_words].view("<u8"), new[:in_words].view("<u8")
    changed, far_count = _compare(before, after, *words, gaps, far, differences)
    if changed < 0:
        return None
    coded = _zigzag(differences[:changed], width)
    planes = [(coded >> 8 * plane).astype(np.uint8) for plane in range(width)]
    streams = gaps[:changed], far[:far_count], *planes
    together = b"".join(stream.tobytes() for stream in streams)
    body = zstandard.ZstdCompressor(LEVEL, write_checksum=True).compress(together)
    if len(body) >= len(new):
        return None
    return Patch(base, version, width, changed, far_count, checksum(new), body)


def _clearly_more(before: Elements, after: Elements, worth: float) -> bool:
    """Whether a sample leaves no doubt that more than a share `worth` changed."""
    differ = before[::SAMPLE] != after[::SAMPLE]
    return bool(np.count_nonzero(differ) > 1.1 * worth * len(differ) + 10)


def _comparing(element: str) -> str:
    arrays = [read(element)] * 2 + [read("uint64")] * 2
    found = written("uint8"), written("uint32"), written(element)
    return f"UniTuple(int64, 2)({', '.join((*arrays, *found))})"


@compiled(_comparing("uint16"), _comparing("uint32"))
def _compare(
    before: Elements,
    after: Elements,
    before_words: Elements,
    after_words: Elements,
    gaps: Elements,
    far: Elements,
    differences: Elements,
) -> tuple[int, int]:
    """Find what differs; returns (changes, far gaps), or (-1, 0) where `gaps` is too short.

    Which ones differ cannot be foretold, so they are listed without a branch: first words of 64
    bits, as nearly all are equal, then elements of those that differ.
    """
    in_word = 8 // after.itemsize
    found, found_far, expected = 0, 0, 0
    words, elements = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for start in range(0, len(after), BLOCK):
        old, new = before[start : start + BLOCK], after[start : start + BLOCK]
        first, last = start // in_word, (start + len(new)) // in_word
        old_words, new_words = before_words[first:last], after_words[first:last]
        some, count = 0, 0
        for word in range(len(new_words)):
            words[some] = word
            some += old_words[word] != new_words[word]
        for word in words[:some]:
            for element in range(word * in_word, (word + 1) * in_word):
                elements[count] = element
                count += old[element] != new[element]
        for element in range(len(new_words) * in_word, len(new)):
            elements[count] = element
            count += old[element] != new[element]
        if found + count > len(gaps):
            return -1, 0
        for element in elements[:count]:
            gap = start + element - expected
            if gap >= FAR:
                far[found_far] = gap
                found_far += 1
            gaps[found] = min(gap, FAR)
            differences[found] = new[element] - old[element]
            expected = start + element + 1
            found += 1
    return found, found_far


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
        streams = zstandard.ZstdDecompressor().decompress(patch.body)
    except zstandard.ZstdError as error:
        raise _damaged(str(error)) from None
    gaps = np.frombuffer(streams, np.uint8, changed)
    far = np.frombuffer(streams, "<u4", far_count, changed)
    planes = np.frombuffer(streams, np.uint8, offset=changed + 4 * far_count)
    coded = np.empty(width * changed, dtype=np.uint8)
    for plane in range(width):
        coded[plane::width] = planes[plane * changed : (plane + 1) * changed]
    return gaps, far, _unzigzag(coded.view(_UNSIGNED[width]), width)


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


def _zigzag(difference: Elements, width: int) -> Elements:
    """0, -1, 1, -2 … as 0, 1, 2, 3 …, modulo the width: small either way means small."""
    signed = difference.view(_SIGNED[width])
    coded: Elements = (signed << 1) ^ (signed >> (8 * width - 1))
    return coded.view(_UNSIGNED[width])


def _unzigzag(coded: Elements, width: int) -> Elements:
    signs = (coded & 1).view(_SIGNED[width])
    difference: Elements = (coded >> 1) ^ (-signs).view(_UNSIGNED[width])
    return difference


def warm_up() -> None:
    """Compile what encodes and applies patches, before an update has to wait for it."""
    prepare(_compare, _add, sum_rows)


def _damaged(what: str) -> WeightsError:
    return WeightsError(f"weights: a damaged patch, {what}", cause="patch_damaged")

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

from r3l.checksum import Bytes, checksum
from r3l.codec import pack, unpack
from r3l.errors import RecordError, WeightsError

LEVEL = 1  # zstd; higher levels gain under 2 % on such data and take several times longer
FAR = 255
BLOCK = 1 << 18  # elements compared at a time, so that they stay in the processor's cache
_NOWHERE = np.zeros(0, dtype=np.int64)
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
    """The patch from `old` to `new` (uint8 [n], n a multiple of `width`).

    None where more than a share `worth` of the elements changed, or where it would not be
    smaller than the bytes themselves.
    """
    before, after = old.view(_UNSIGNED[width]), new.view(_UNSIGNED[width])
    changes = _changes(before, after, int(worth * len(after)))
    if changes is None:
        return None
    where, differences = changes
    gaps = np.diff(where, prepend=-1) - 1
    far = gaps[gaps >= FAR].astype("<u4")
    coded = _zigzag(differences, width)
    planes = [(coded >> 8 * plane).astype(np.uint8) for plane in range(width)]
    streams = (np.minimum(gaps, FAR).astype(np.uint8), far, *planes)
    together = b"".join(stream.tobytes() for stream in streams)
    body = zstandard.ZstdCompressor(LEVEL, write_checksum=True).compress(together)
    if len(body) >= len(new):
        return None
    return Patch(base, version, width, len(where), len(far), checksum(new), body)


def _changes(
    before: npt.NDArray[Any], after: npt.NDArray[Any], limit: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]] | None:
    """(positions, new minus old there); None as soon as more than `limit` are found."""
    found, where, differences = 0, [_NOWHERE], [after[:0]]
    differs = np.zeros(BLOCK, dtype=np.bool_)
    for start in range(0, len(after), BLOCK):
        old, new = before[start : start + BLOCK], after[start : start + BLOCK]
        np.not_equal(old, new, out=differs[: len(new)])
        differs[len(new) :] = False
        # Few are set: most are passed by eight at a time.
        eights = differs.view(np.uint64)
        some = np.flatnonzero(eights != 0)
        at = np.flatnonzero(eights[some].view(np.bool_))
        positions = (some[at >> 3] << 3) + (at & 7)
        found += len(positions)
        if found > limit:
            return None
        where.append(positions + start)
        differences.append(new[positions] - old[positions])
    return np.concatenate(where), np.concatenate(differences)


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
    where, values = _read(patch, len(elements))
    elements[where] += values
    if checksum(held) != patch.checksum:
        raise _damaged("its result has another checksum")


def _read(patch: Patch, elements: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """(positions, what to add there); every count is checked before memory is taken for it."""
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
    gaps = np.frombuffer(streams, np.uint8, changed).astype(np.int64)
    is_far = gaps == FAR
    if np.count_nonzero(is_far) != far_count:
        raise _damaged("its far gaps are miscounted")
    gaps[is_far] = np.frombuffer(streams, "<u4", far_count, changed)
    where = np.cumsum(gaps + 1) - 1
    if changed and where[-1] >= elements:
        raise _damaged("it reaches past the end")
    planes = np.frombuffer(streams, np.uint8, offset=changed + 4 * far_count)
    coded = np.zeros(changed, dtype=_UNSIGNED[width])
    for plane, part in enumerate(planes.reshape(width, changed)):
        coded |= part.astype(_UNSIGNED[width]) << 8 * plane
    return where, _unzigzag(coded, width)


def _zigzag(difference: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """0, -1, 1, -2 … as 0, 1, 2, 3 …, modulo the width: small either way means small."""
    signed = difference.view(_SIGNED[width])
    coded: npt.NDArray[Any] = (signed << 1) ^ (signed >> (8 * width - 1))
    return coded.view(_UNSIGNED[width])


def _unzigzag(coded: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    signs = (coded & 1).view(_SIGNED[width])
    difference: npt.NDArray[Any] = (coded >> 1) ^ (-signs).view(_UNSIGNED[width])
    return difference


def _damaged(what: str) -> WeightsError:
    return WeightsError(f"weights: a damaged patch, {what}", cause="patch_damaged")

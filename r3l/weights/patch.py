"""Lossless patches between two versions of a chunk of weights, on the wire and in the journal.

A patch lists the elements that changed, bit for bit:

    gaps    distance from the previous changed element (of the first: from index 0), uint32
    flips   new XOR old bits of each changed element

Each list is split into byte planes (all lowest bytes, then all second bytes, …) and compressed.
Neighbouring floats have neighbouring bit patterns, so after a small update the upper planes are
almost all zero. A patch has no format version. If this format changes, older journals count as
damaged.
"""

from dataclasses import dataclass
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from r3l.errors import WeightsError
from r3l.weights.manifest import Bytes

MOST_CHANGED_SHARE = 0.25
"""A chunk is sent whole if more than this share of its elements changed. Making a patch would take
about as long as sending the chunk over 1 Gbit/s."""
Elements = npt.NDArray[Any]
_GAP: np.dtype[Any] = np.dtype("<u4")
_ELEMENT: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclass(frozen=True)
class Patch:
    """Turns version `base` of a chunk into version `version`. `width`: bytes of an element.
    `changed`: number of changed elements. `checksum`: the checksum of the patched chunk."""

    base: int
    version: int
    width: int
    changed: int
    checksum: int
    body: bytes

    def to_wire(self) -> bytes:
        """Returns the patch as one message frame."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_wire(cls, frame: bytes | memoryview) -> Self:
        """Rebuilds a patch from its frame. Raises WeightsError if it is not a patch."""
        try:
            return msgspec.msgpack.decode(frame, type=cls)
        except (ValueError, RecursionError) as error:
            raise _damaged(f"malformed ({error})") from None


def checksum(data: Bytes) -> int:
    """Computes the 64-bit checksum (XXH3) of `data`, uint8 [n]. It detects damage, not attacks."""
    return xxhash.xxh3_64_intdigest(data.data)


def encode(old: Bytes, new: Bytes, *, base: int, version: int, width: int) -> Patch | None:
    """Makes a patch from `old` to `new`, both uint8 [n]. Returns None if more than
    MOST_CHANGED_SHARE of the elements changed, or if the patch saves nothing."""
    before, after = old.view(_ELEMENT[width]), new.view(_ELEMENT[width])
    differ = before != after
    if np.count_nonzero(differ) > MOST_CHANGED_SHARE * len(after):
        return None
    places = np.flatnonzero(differ)
    gaps = np.diff(places.astype(_GAP), prepend=_GAP.type(0))
    lists = np.concatenate([_to_planes(gaps), _to_planes(before[places] ^ after[places])])
    body = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(lists.data)
    if len(body) >= len(new):
        return None
    return Patch(base, version, width, len(places), checksum(new), body)


def apply(patch: Patch, held: Bytes, *, version: int) -> None:
    """Patches `held`, uint8 [n], in place. Raises WeightsError if the patch does not fit `version`
    or is damaged. A damaged patch may spoil `held`."""
    if patch.base != version:
        raise WeightsError(
            f"weights: the patch applies to version {patch.base}, not to version {version}",
            cause="wrong_base",
        )
    if patch.width not in _ELEMENT or len(held) % patch.width:
        raise _damaged(f"{len(held)} bytes cannot be split into elements of {patch.width} bytes")
    elements = held.view(_ELEMENT[patch.width])
    gaps, flips = _lists(patch, len(elements))
    places = np.cumsum(gaps, dtype=np.int64)
    if patch.changed and places[-1] >= len(elements):
        raise _damaged("its gaps reach past the end")
    elements[places] ^= flips
    if checksum(held) != patch.checksum:
        raise _damaged("its result has the wrong checksum")


def _lists(patch: Patch, elements: int) -> tuple[Elements, Elements]:
    """Unpacks a patch's (gaps, flips). Checks their lengths before it allocates memory for them."""
    if not 0 <= patch.changed <= elements:
        raise _damaged(f"it changes {patch.changed} of {elements} elements")
    end_of_gaps = patch.changed * _GAP.itemsize
    size = end_of_gaps + patch.changed * patch.width
    try:
        if zstandard.frame_content_size(patch.body) != size:
            raise _damaged("its lists have the wrong length")
        lists = np.frombuffer(zstandard.ZstdDecompressor().decompress(patch.body), np.uint8)
    except zstandard.ZstdError as error:
        raise _damaged(str(error)) from None
    return (
        _from_planes(lists[:end_of_gaps], _GAP),
        _from_planes(lists[end_of_gaps:], _ELEMENT[patch.width]),
    )


def _to_planes(values: Elements) -> Bytes:
    """Writes all lowest bytes of `values`, then all second bytes, and so on."""
    planes = np.empty((values.itemsize, len(values)), np.uint8)
    planes[:] = values.view(np.uint8).reshape(-1, values.itemsize).T  # without the GIL
    return planes.reshape(-1)


def _from_planes(planes: Bytes, dtype: np.dtype[Any]) -> Elements:
    """Inverts `_to_planes`."""
    values = np.empty(len(planes) // dtype.itemsize, dtype)
    for plane, data in enumerate(np.split(planes, dtype.itemsize)):
        values.view(np.uint8)[plane :: dtype.itemsize] = data
    return values


def _damaged(what: str) -> WeightsError:
    return WeightsError(f"weights: the patch is damaged: {what}", cause="patch_damaged")

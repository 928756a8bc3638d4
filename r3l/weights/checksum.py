"""A checksum that keeps up with memory, for bytes whose sender is known already.

Weights are read several times on their way, and an update is awaited by engines; CRC-32 alone would
take as long as the bytes take to arrive. This one guards against damage and mix-ups, not against
an adversary: that is what the keys of the connection are for.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from r3l.weights.numba_loops import compiled, read, written

Bytes = npt.NDArray[np.uint8]

_ROW = 4096  # words
_FACTORS = np.random.PCG64(0).random_raw(_ROW) | np.uint64(1)  # the same in every numpy


def checksum(data: Bytes) -> int:
    """64-bit checksum of `data` (uint8 [n]).

    Of each row of 4096 words of 64 bits: their sum mod 2^64, each times its own fixed odd number.
    An odd factor has an inverse, so a word that changed alone always changes the sum, and words
    that changed places change it as their factors differ. The sums, in order, are then hashed.
    """
    sums = np.empty(len(data) // (8 * _ROW), dtype="<u8")
    in_rows = len(sums) * 8 * _ROW
    sum_rows(data[:in_rows].view("<u8"), _FACTORS, sums)
    whole = hashlib.blake2b(sums.tobytes(), digest_size=8)
    whole.update(data[in_rows:].tobytes())
    whole.update(len(data).to_bytes(8, "little"))
    return int.from_bytes(whole.digest(), "little")


@compiled(f"void({read('uint64')}, {read('uint64')}, {written('uint64')})")
def sum_rows(words: npt.NDArray[Any], factors: npt.NDArray[Any], sums: npt.NDArray[Any]) -> None:
    """The sum of each row of words, weighted."""
    for row in range(len(sums)):
        total = np.uint64(0)
        for word in range(_ROW):
            total += words[row * _ROW + word] * factors[word]
        sums[row] = total

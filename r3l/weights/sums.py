"""Sums over the elements of a weight set. The order of the elements does not matter.

An engine keeps weights in its own layout: fused, transposed, padded, or in float32 although they
arrived as bfloat16. Let x be the bits of an element as a float32. The sums

    Σ x  and  Σ x²,  modulo 2^64

are equal for the published weights and those in the engine. If one element differs, the sums
differ. The sums do not detect attacks, or elements that swap places.
"""

from collections.abc import Iterable

import numpy as np

from r3l.weights.manifest import Bytes, Layout

Sums = tuple[int, int]
BLOCK = 1 << 24  # elements at a time
MODULUS = 1 << 64


def sums_of(data: Bytes, dtype: str) -> Sums:
    """Computes the sums over elements of type `dtype`. `data`: the bytes of the elements."""
    first = second = 0
    shift = 16 if dtype == "bfloat16" else 0  # the upper half of a float32
    width = 4 if dtype == "float32" else 2
    for at in range(0, len(data), BLOCK * width):
        block = data[at : at + BLOCK * width]
        if dtype == "float16":
            bits = block.view("<f2").astype("<f4").view("<u4")
        else:
            bits = block.view("<u2" if dtype == "bfloat16" else "<u4")
        # Few, long calls: between two of them the threads of a process wait for each other.
        first += int(bits.sum(dtype=np.uint64))
        second += int(np.einsum("i,i->", bits, bits, dtype=np.uint64, casting="unsafe"))
    return (first << shift) % MODULUS, (second << 2 * shift) % MODULUS


def add_sums(sums: Iterable[Sums]) -> Sums:
    """Adds the sums of several sets of elements."""
    first = second = 0
    for one, other in sums:
        first, second = first + one, second + other
    return first % MODULUS, second % MODULUS


def only_dtype(layout: Layout) -> str:
    """Returns the dtype shared by all tensors; "" if they have several."""
    dtypes = {entry.dtype for entry in layout.tensors}
    return dtypes.pop() if len(dtypes) == 1 else ""

"""Sums over the elements of a set, by literal values."""

import numpy as np
import pytest

from r3l.weights.manifest import Layout
from r3l.weights.sums import MODULUS, add_sums, only_dtype, sums_of

ONE, TWO = 0x3F80_0000, 0x4000_0000  # bits of 1.0 and 2.0 as float32


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("float32", np.array([1.0, 0.0, 2.0], "<f4")),
        ("float16", np.array([1.0, 0.0, 2.0], "<f2")),
        ("bfloat16", np.array([ONE >> 16, 0, TWO >> 16], "<u2")),
    ],
)
def test_the_sums_are_those_of_the_bits_as_float32_in_every_format(
    dtype: str, data: np.ndarray
) -> None:
    assert sums_of(data.view(np.uint8), dtype) == (2139095040, 2287898979448389632)
    assert (ONE + TWO, (ONE**2 + TWO**2) % MODULUS) == (2139095040, 2287898979448389632)


def test_sums_wrap_around_and_are_the_same_in_any_order_and_any_parts() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 300_000, dtype=np.uint64)
    data = bits.astype("<u4").view(np.uint8)
    values = bits.tolist()
    right = sum(values) % MODULUS, sum(x * x for x in values) % MODULUS
    assert sums_of(data, "float32") == right
    assert sums_of(data.view("<u4")[::-1].copy().view(np.uint8), "float32") == right
    assert add_sums([sums_of(data[:4000], "float32"), sums_of(data[4000:], "float32")]) == right
    data[12345] ^= 1
    assert sums_of(data, "float32") != right


def test_only_a_set_of_one_format_has_a_format() -> None:
    assert only_dtype(Layout.of([("a", "bfloat16", (2,)), ("b", "bfloat16", (3,))])) == "bfloat16"
    assert only_dtype(Layout.of([("a", "bfloat16", (2,)), ("b", "float32", (3,))])) == ""

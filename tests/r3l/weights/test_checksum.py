"""The checksum of weights: whatever is damaged or out of place, it is another one."""

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from r3l.weights.checksum import checksum

ROW = 8 * 4096  # bytes
DATA = np.random.default_rng(0).integers(0, 256, 3 * ROW + 100, dtype=np.uint8)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_one_changed_byte_anywhere_changes_it(place: int, flip: int) -> None:
    damaged = DATA.copy()
    damaged[place] ^= flip
    assert checksum(damaged) != checksum(DATA)


@given(st.integers(0, 3 * 4096 - 1), st.integers(0, 3 * 4096 - 1))
@settings(max_examples=300, deadline=None)
def test_words_that_changed_places_change_it(one: int, other: int) -> None:
    damaged = DATA.copy()
    words = damaged[: 3 * ROW].view(np.uint64)
    words[[one, other]] = words[[other, one]]
    assert (checksum(damaged) == checksum(DATA)) == (damaged.tobytes() == DATA.tobytes())


def test_it_is_the_sum_that_is_written_down() -> None:
    """Row by row in Python's integers; and the same in every process, so literal."""
    factors = [int(f) | 1 for f in np.random.PCG64(0).random_raw(4096)]
    rows = DATA[: 3 * ROW].view(np.uint64).reshape(3, 4096).tolist()
    sums = [sum(w * f for w, f in zip(row, factors, strict=True)) % 2**64 for row in rows]
    whole = hashlib.blake2b(np.array(sums, dtype="<u8").tobytes(), digest_size=8)
    whole.update(DATA[3 * ROW :].tobytes() + len(DATA).to_bytes(8, "little"))
    assert checksum(DATA) == int.from_bytes(whole.digest(), "little")
    assert checksum(np.arange(100_000).astype(np.uint8)) == 18346477971731326003


def test_length_and_emptiness_count() -> None:
    sizes = [0, 1, 8, ROW, ROW + 8, 2 * ROW]
    assert len({checksum(np.zeros(size, dtype=np.uint8)) for size in sizes}) == len(sizes)


def test_bytes_may_lie_at_any_address() -> None:
    for shift in range(8):
        room = np.zeros(len(DATA) + 8, dtype=np.uint8)
        room[shift : shift + len(DATA)] = DATA
        assert checksum(room[shift : shift + len(DATA)]) == checksum(DATA)

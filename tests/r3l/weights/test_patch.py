"""Patches between versions of weights: exact, small where updates are small, never half right."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from r3l.errors import WeightsError
from r3l.weights.patch import MOST_CHANGED_SHARE, Patch, apply, checksum, encode

WIDTHS = {2: np.uint16, 4: np.uint32}


def patch_between(old: np.ndarray, new: np.ndarray, width: int = 2) -> Patch | None:
    return encode(old.view(np.uint8), new.view(np.uint8), base=3, version=4, width=width)


def changed_copy(old: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    """Some elements moved to a neighbouring bit pattern."""
    rng = np.random.default_rng(seed)
    new = old.copy()
    where = rng.random(len(old)) < share
    new[where] += rng.choice(np.array([1, -1]).astype(old.dtype), where.sum())
    return new


@given(st.data(), st.sampled_from([2, 4]))
@settings(max_examples=200, deadline=None)
def test_a_patch_gives_back_the_new_bytes_whatever_they_are(
    data: st.DataObject, width: int
) -> None:
    size = data.draw(st.integers(0, 2000))
    words = arrays.arrays(WIDTHS[width], size, elements={"max_value": 2 ** (8 * width) - 1})
    old = data.draw(words)
    new = old.copy()
    where = data.draw(st.lists(st.integers(0, max(size - 1, 0)), max_size=size // 2))
    for index in where:
        new[index] = data.draw(st.integers(0, 2 ** (8 * width) - 1))
    patch = patch_between(old, new, width)
    if patch is not None:
        held = old.view(np.uint8).copy()
        apply(Patch.from_wire(patch.to_wire()), held, version=3)
        assert held.tobytes() == new.tobytes()
        assert patch.changed == np.count_nonzero(old != new)


@given(st.integers(0, 1 << 30), st.sampled_from([2, 4]), st.floats(0, 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_change_of_a_chunk_of_any_length_is_found_in_its_place(
    seed: int, width: int, share: float, in_bursts: bool
) -> None:
    """At any address, against Python's own comparison."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5000))
    room = np.zeros(width * size + 8, dtype=np.uint8)
    old = room[(shift := int(rng.integers(0, 8))) : shift + width * size].view(WIDTHS[width])
    old[:] = rng.integers(0, 1 << 8 * width, size, dtype=WIDTHS[width])
    where = rng.random(size if not in_bursts else size // 300 + 1) < share**3
    where = np.repeat(where, 300)[:size] if in_bursts else where
    new = old.copy()
    new[where] ^= rng.integers(0, 3, where.sum(), dtype=WIDTHS[width])
    patch = patch_between(old, new, width)
    changed = sum(o != n for o, n in zip(old.tolist(), new.tolist(), strict=True))
    if patch is None:
        assert changed > MOST_CHANGED_SHARE * size or old.nbytes < 200
        return
    assert patch.changed == changed
    apply(patch, old.view(np.uint8), version=3)
    assert old.tobytes() == new.tobytes()
    assert room[:shift].sum() == room[shift + width * size :].sum() == 0


@pytest.mark.parametrize(
    ("share", "made"), [(0.9 * MOST_CHANGED_SHARE, True), (1.1 * MOST_CHANGED_SHARE, False)]
)
def test_a_chunk_is_patched_up_to_the_share_of_changes_that_is_worth_it(
    share: float, made: bool
) -> None:
    old = np.random.default_rng(0).integers(0, 1 << 16, 50_000, dtype=np.uint16)
    patch = patch_between(old, changed_copy(old, share))
    assert (patch is not None) == made


def test_flipped_signs_and_nans_survive_a_patch() -> None:
    old = np.array([0x0000, 0x8000, 0x7F80, 0x7FC1, 0xFFFF, 0, 0, 0, 0] * 9, dtype=np.uint16)
    new = old.copy()
    new[:4] = [0x8000, 0x0000, 0x7FC2, 0xFF80]
    patch = patch_between(old, new)
    assert patch is not None
    held = old.view(np.uint8).copy()
    apply(patch, held, version=3)
    assert held.tobytes() == new.tobytes()


def test_a_sparse_update_of_small_steps_takes_about_a_byte_a_change() -> None:
    old = np.random.default_rng(0).integers(0, 1 << 16, 1 << 20, dtype=np.uint16)
    new = changed_copy(old, 0.03)
    patch = patch_between(old, new)
    assert patch is not None
    assert len(patch.body) < 1.4 * patch.changed < 0.022 * old.nbytes


def test_a_long_unchanged_range_costs_nothing() -> None:
    old = np.zeros(1 << 20, dtype=np.uint16)
    new = old.copy()
    new[[5, 260, 261, 900_000, len(old) - 1]] = 7
    patch = patch_between(old, new)
    assert patch is not None and len(patch.body) < 100
    held = old.view(np.uint8).copy()
    apply(patch, held, version=3)
    assert held.tobytes() == new.tobytes()


def test_a_patch_as_large_as_the_chunk_is_not_made() -> None:
    rng = np.random.default_rng(0)
    old, new = (rng.integers(0, 1 << 16, 4, dtype=np.uint16) for _ in range(2))
    new[1:] = old[1:]
    assert patch_between(old, new) is None


def test_a_patch_of_another_version_changes_nothing() -> None:
    old = np.arange(1000, dtype=np.uint16)
    patch = patch_between(old, changed_copy(old, 0.1))
    assert patch is not None
    held = old.view(np.uint8).copy()
    with pytest.raises(WeightsError, match="version 3, not to version 2"):
        apply(patch, held, version=2)
    assert held.tobytes() == old.tobytes()


@given(st.integers(0, 1 << 30), st.integers(1, 255), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_patch_with_a_flipped_or_missing_byte_is_refused(
    place: int, flip: int, cut: bool
) -> None:
    old = np.arange(3000, dtype=np.uint16)
    new = changed_copy(old, 0.05)
    patch = patch_between(old, new)
    assert patch is not None
    frame = bytearray(patch.to_wire())
    if cut:
        del frame[place % len(frame) :]
    else:
        frame[place % len(frame)] ^= flip
    held = old.view(np.uint8).copy()
    try:
        apply(Patch.from_wire(bytes(frame)), held, version=3)
    except WeightsError as error:
        assert error.cause in ("patch_damaged", "wrong_base")
    else:  # the byte was one that says nothing about the result, such as the version's name
        assert held.tobytes() == new.tobytes()


def test_a_patch_of_damaged_bytes_is_refused_by_its_checksum() -> None:
    old = np.arange(1000, dtype=np.uint16)
    patch = patch_between(old, changed_copy(old, 0.1))
    assert patch is not None
    held = old.view(np.uint8).copy()
    held[11] ^= 1
    with pytest.raises(WeightsError, match="wrong checksum"):
        apply(patch, held, version=3)


def test_a_patch_cannot_request_more_memory_than_its_chunk_has() -> None:
    old = np.arange(1000, dtype=np.uint16)
    patch = patch_between(old, changed_copy(old, 0.1))
    assert patch is not None
    held = old.view(np.uint8).copy()
    for lie in ({"changed": 1 << 40}, {"changed": -1}, {"changed": 50}, {"width": 3}):
        with pytest.raises(WeightsError, match="damaged"):
            apply(replace(patch, **lie), held, version=3)


def test_a_patch_of_a_longer_chunk_is_refused_and_writes_nothing_past_the_end() -> None:
    old = np.zeros(5000, dtype=np.uint16)
    new = old.copy()
    new[[10, 4000, 4001]] = 9
    patch = patch_between(old, new)
    assert patch is not None
    for size in (3000, 4000, 4001):
        held = old.copy()
        with pytest.raises(WeightsError, match="past the end"):
            apply(patch, held[:size].view(np.uint8), version=3)
        assert not held[size:].any()


@given(st.integers(0, 30_000), st.integers(1, 255))
@settings(max_examples=100, deadline=None)
def test_the_checksum_changes_with_any_byte_and_with_the_length(place: int, flip: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 30_001, dtype=np.uint8)
    damaged = data.copy()
    damaged[place] ^= flip
    assert len({checksum(data), checksum(damaged), checksum(data[:-1])}) == 3


def test_the_checksum_is_the_same_in_every_process_and_at_every_address() -> None:
    data = np.zeros(100_008, np.uint8)
    for shift in range(8):
        part = data[shift : shift + 100_000]
        part[:] = np.arange(100_000) % 256
        assert checksum(part) == 4165720818118077784

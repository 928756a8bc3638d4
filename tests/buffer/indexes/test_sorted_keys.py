"""Sorted keys are what sorting a set gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.indexes import sorted_keys
from buffer.indexes.sorted_keys import SortedKeys

KEYS = st.integers(0, 60)


@given(st.lists(st.tuples(st.sampled_from(["add", "discard"]), KEYS), max_size=120), KEYS, KEYS)
def test_keys_are_those_of_a_sorted_set(changes, low, high):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sorted_keys, "CHUNK", 3)  # so that chunks are split and emptied
        keys, slow = SortedKeys[int](2), set[int]()
        for change, key in changes:
            if change == "discard":
                keys.discard(key)
                slow.discard(key)
            elif key not in slow:
                keys.add(key, (key / 2, -key))
                slow.add(key)
    expected = sorted(slow)
    assert list(keys) == expected == [keys[at] for at in range(len(keys))]
    assert len(keys) == len(expected)
    assert keys.numbers().tolist() == [[key / 2, -key] for key in expected]
    assert [key for key in range(61) if key in keys] == expected
    assert keys.below(low) == [key for key in expected if key < low]
    assert keys.count_below(low) == len(keys.below(low))
    assert keys.between(low, high) == [key for key in expected if low <= key < high]
    with pytest.raises(IndexError):
        keys[len(expected)]


def test_keys_without_numbers_have_an_array_without_columns():
    keys = SortedKeys[str]()
    assert keys.numbers().shape == (0, 0)
    keys.add("a")
    assert keys.numbers().shape == (1, 0)

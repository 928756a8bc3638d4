"""Keys of the tables: they sort as the things they name, and are never ambiguous."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.storage.layout import (
    KEY_LIMIT,
    history_key,
    part_key,
    reflection_key,
    tag_prefix,
    task_id_key,
    task_key,
    u64,
)
from r3l.errors import LimitExceeded
from r3l.records import NAME_LIMIT

numbers = st.integers(0, 2**64 - 1)


@given(numbers, numbers)
def test_numbers_sort_by_value(one, other):
    assert (u64(one) < u64(other)) == (one < other)
    assert (task_key("train", "", one) < task_key("train", "", other)) == (one < other)


@given(st.lists(st.integers(0, 1023), max_size=9))
def test_parts_sort_by_slot(slots):
    assert sorted(slots) == sorted(slots, key=lambda slot: part_key("g0000000001", slot))


@given(st.lists(st.text(min_size=1, max_size=80).filter(str.isprintable), max_size=9))
def test_reflections_sort_by_name_and_the_longest_name_fits_a_key(names):
    keys = [reflection_key("g0000000001", name) for name in names]
    assert sorted(names) == [name for _, name in sorted(zip(keys, names, strict=True))]
    assert len(reflection_key("g0000000001", "\U0001f600" * NAME_LIMIT)) < 511


def test_a_tag_or_task_that_begins_like_another_is_told_apart():
    assert not task_key("eval", "step-10", 0).startswith(tag_prefix("eval", "step-1"))
    assert not history_key("t10", "g").startswith(b"t1\0")
    assert len({tag_prefix(p, t) for p in ("train", "eval") for t in ("", "x")}) == 4


def test_a_task_id_that_lmdb_cannot_hold_is_refused():
    assert task_id_key("eval", "x", "y" * (KEY_LIMIT - 1))
    for tag, task_id in (("x", "y" * KEY_LIMIT), ("ü" * (KEY_LIMIT // 2), "y"), ("a\0b", "y")):
        with pytest.raises(LimitExceeded):
            task_id_key("eval", tag, task_id)

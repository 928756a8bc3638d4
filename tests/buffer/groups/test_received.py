"""Results that clients send: checked completely before anything is kept of them."""

import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.groups.slot_outcome import decode_outcome
from r3l import codec
from r3l.errors import RecordError
from r3l.records import (
    SlotResult,
)
from tests.buffer.fakes import full_result


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_result_is_refused_or_can_be_read_again(damage):
    damaged = bytearray(codec.encode(full_result()))
    for at, byte in damage:
        damaged[at % len(damaged)] = byte
    try:
        outcome = decode_outcome(bytes(damaged))
    except RecordError:
        return
    result = codec.decode(SlotResult, bytes(damaged))
    again = codec.decode(SlotResult, codec.encode(result))
    assert (again.role, again.slot, again.status) == outcome[:3]


def _array(values, dtype, shape=None):
    array = np.array(values, dtype)
    return [array.dtype.str, list(array.shape) if shape is None else shape, array.tobytes()]


def _changed(**changes):
    """An encoded slot result with other values of its own fields, or of its trajectory's."""
    schema, kind, fields = msgpack.unpackb(codec.encode(full_result()))
    for name, value in changes.items():
        (fields if name in fields else fields["trajectory"])[name] = value
    return msgpack.packb([schema, kind, fields])


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": ["<i4", [9], b"\0" * 32]},
        {"token_ids": _array([0] * 8, "<i4")},
        {"token_ids": _array([0] * 9, "<i4", [3, 3])},
        {"token_ids": _array([0] * 9, "<f4")},
        {"token_ids": None},
        {"step_spans": _array([[0, 2], [1, 5]], "<i4")},
        {"step_spans": _array([[0, 2], [3, 99]], "<i4")},
        {"step_spans": _array([0] * 4, "<i4")},
        {"step_spans": _array(0, "<i4")},
        {"step_versions": _array([0], "<i4")},
        {"step_newest_versions": _array([9], "<i4")},
        {"step_newest_versions": _array([5, 5], "<i4")},
        {"step_seconds": _array([[0], [0]], "<f4")},
        {"actions": ["a"]},
        {"actions": "ab"},
        {"observations": ["a", "b", 3]},
        {"reward": float("nan")},
        {"reward": True},
        {"pivot": 2},
        {"pivot": -2},
        {"extra": {"start": 2**63}},
        {"extra": {"start": 9}},
        {"extra": {"step_cut": _array([True], "|b1")}},
        {"extra": {"step_rewards": _array([[0], [0]], "<f4")}},
        {"extra": {"reward_parts": {"a": "b"}}},
        {"extra": {"colour": 1}},
        {"extra": None},
        {"parent": 2**64 - 1},
        {"system": b"s"},
        {"finish": None},
        {"role": "critic"},
        {"slot": 1},
        {"status": "failed"},
        {"status": "lost"},
        {"cause": "x"},
        {"trajectory": None},
        {"trajectory": []},
        {"reflection": {"text": 3}},
        {"reflection": {"text": "t", "version": 2**63}},
        {"aux": [{"kind": "retry", "token_ids": _array([1], "<i4"),
                  "response_mask": _array([True, True], "|b1")}]},
        {"aux": [{"kind": "retry"}]},
        {"colour": 1},
    ],
    ids=str,
)  # fmt: skip
def test_each_malformed_field_of_a_result_is_refused(changes):
    with pytest.raises(RecordError):
        decode_outcome(_changed(**changes))


def test_the_outcome_of_a_slot_result_says_how_the_slot_was_resolved():
    oldest, newest = np.array([[7, 5], [8, 5]], dtype=np.int32)
    data = codec.encode(full_result(step_versions=oldest, step_newest_versions=newest))
    outcome = decode_outcome(data)
    assert outcome[:-2] == ("base", 0, "done", "", 0.5, 5, 8)
    assert outcome.checksum == zlib.crc32(codec.body(SlotResult, data))
    failed = decode_outcome(codec.encode(SlotResult("distilled", 3, "failed", cause="engine")))
    assert failed[:-2] == ("distilled", 3, "failed", "engine", None, -1, -1)


def test_fields_with_a_default_may_be_missing_and_a_reward_may_be_an_integer():
    schema, kind, fields = msgpack.unpackb(codec.encode(full_result()))
    del fields["aux"], fields["trajectory"]["feedback"]
    assert decode_outcome(msgpack.packb([schema, kind, fields])).reward == 0.5
    assert decode_outcome(_changed(reward=2)).reward == 2.0

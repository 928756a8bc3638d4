"""Results and reflections that clients send: checked completely before anything is kept of them."""

import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from buffer.wire.received import read_reflection, read_result
from r3l import codec
from r3l.errors import RecordError, SickResult
from r3l.records import ReflectionRecord, SlotResult
from tests.buffer.fakes import full_result, thought


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_result_is_refused_or_can_be_read_again(damage):
    damaged = bytearray(codec.encode(full_result()))
    for at, byte in damage:
        damaged[at % len(damaged)] = byte
    try:
        result = read_result(bytes(damaged)).record
    except RecordError:
        return
    again = codec.decode(SlotResult, codec.encode(result))
    assert (again.slot, again.of, again.status) == (result.slot, result.of, result.status)


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
        {"of": 2**64 - 1},
        {"of": 3},
        {"origin": {"group_id": "g1", "slot": 2}},
        {"shown": {"tokens": _array([1], "<i4"), "keep": 2, "resume": 1}},
        {"shown": {"tokens": _array([1], "<f4"), "keep": 1, "resume": 1}},
        {"shown": {"tokens": _array([1], "<i4"), "keep": 1, "resume": 99}},
        {"extra": {"scores": {"a": float("inf")}}},
        {"system": b"s"},
        {"finish": None},
        {"role": "base"},
        {"slot": 1},
        {"status": "failed"},
        {"status": "lost"},
        {"cause": "x"},
        {"trajectory": None},
        {"trajectory": []},
        {"reflection": 3},
        {"aux": []},
        {"colour": 1},
    ],
    ids=str,
)  # fmt: skip
def test_each_malformed_field_of_a_result_is_refused(changes):
    with pytest.raises(RecordError):
        read_result(_changed(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "n" * 81},
        {"name": "with a \0"},
        {"text": 3},
        {"version": 2**63},
        {"token_ids": _array([1], "<i4")},
        {"logprobs": _array([0] * 5, "<i4")},
        {"start": 6},
        {"start": -1},
        {"cause": None},
        {"colour": 1},
    ],
    ids=str,
)
def test_each_malformed_field_of_a_reflection_is_refused(changes):
    schema, kind, fields = msgpack.unpackb(codec.encode(thought()))
    with pytest.raises(RecordError):
        read_reflection(msgpack.packb([schema, kind, fields | changes]))


def test_what_is_received_has_its_newest_version_and_its_checksum():
    oldest, newest = np.array([[7, 5], [8, 5]], dtype=np.int32)
    data = codec.encode(full_result(step_versions=oldest, step_newest_versions=newest))
    received = read_result(data)
    assert codec.encode(received.record) == received.encoded == data
    assert (received.newest, received.checksum) == (8, zlib.crc32(codec.body(SlotResult, data)))
    assert read_result(codec.encode(SlotResult(3, "failed", cause="engine"))).newest == -1
    data = codec.encode(thought(version=4))
    received = read_reflection(data)
    assert codec.encode(received.record) == received.encoded == data
    body = codec.body(ReflectionRecord, data)
    assert (received.newest, received.checksum) == (4, zlib.crc32(body))


@pytest.mark.parametrize(
    ("cause", "last", "version"),
    [
        ("logprobs_not_finite", np.nan, 0),
        ("logprobs_positive", 0.5, 0),
        ("version_negative", -1.0, -1),
    ],
)
def test_a_reflection_of_a_sick_engine_is_refused_by_its_symptom(cause, last, version):
    sound = thought(version=version)
    sick = replace(sound, logprobs=np.append(sound.logprobs[:-1], np.float32(last)))
    with pytest.raises(SickResult) as refused:
        read_reflection(codec.encode(sick))
    assert refused.value.cause == cause


def test_fields_with_a_default_may_be_missing_and_a_reward_may_be_an_integer():
    schema, kind, fields = msgpack.unpackb(codec.encode(full_result()))
    del fields["of"], fields["trajectory"]["feedback"]
    assert read_result(msgpack.packb([schema, kind, fields])).record.trajectory.reward == 0.5
    assert read_result(_changed(reward=2)).record.trajectory.reward == 2.0

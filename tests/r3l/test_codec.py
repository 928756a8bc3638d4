"""The codec: what goes in comes out bit by bit; anything else is a named error."""

from contextlib import suppress
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l import codec
from r3l.errors import RecordError, SchemaVersionError
from r3l.records import (
    AuxSample,
    Group,
    GroupPlan,
    ReflectionRecord,
    SlotResult,
    Task,
    Trajectory,
)


def _result(make_trajectory, role="base", slot=0):
    aux = AuxSample("retry", np.arange(3, dtype=np.int32), np.array([False, True, True]))
    thought = ReflectionRecord("{}", outcome="failure", pivot=1, tokens=3, version=2, seconds=0.5)
    return SlotResult(
        role,
        slot,
        "done",
        trajectory=make_trajectory((2, 3), role=role, slot=slot, reward=0.5),
        reflection=thought,
        aux=(aux,),
    )


def _group(make_trajectory):
    return Group(
        group_id="g1",
        task=Task("t", "workshop", 7, {"size": [1, 2.5, None, {"deep": True}], "raw": b"\x00"}),
        plan=GroupPlan(2, 1),
        state="complete",
        results=(_result(make_trajectory), SlotResult("base", 1, "failed", cause="engine")),
        times={"leased": 1.5},
        fingerprints={3: "abc", -1: ""},
    )


def test_every_record_comes_back_as_the_same_bytes(make_trajectory):
    group = _group(make_trajectory)
    result = group.results[0]
    for record in (group, group.task, result, result.trajectory, result.reflection, result.aux[0]):
        data = codec.encode(record)
        again = codec.decode(type(record), data)
        assert codec.encode(again) == data
    assert codec.decode(Group, codec.encode(group)).fingerprints == group.fingerprints


def test_arrays_keep_every_bit_of_strange_floats(make_trajectory):
    strange = np.array(
        [0x7FC00001, 0xFFC12345, 0x80000000, 0x00000001, 0x7F800000], dtype=np.uint32
    ).view(np.float32)
    trajectory = replace(
        make_trajectory((2,), prompt=3),
        token_ids=np.array([-(2**31), 2**31 - 1, 0, 1, 2], dtype=np.int32),
        logprobs=strange,
    )
    again = codec.decode(Trajectory, codec.encode(trajectory))
    assert again.logprobs.tobytes() == strange.tobytes()
    assert again.token_ids.tolist() == trajectory.token_ids.tolist()


def test_a_group_composed_of_encoded_results_equals_one_encoded_whole(make_trajectory):
    group = _group(make_trajectory)
    composed = codec.encode_group(group, [codec.encode(r) for r in group.results])
    assert codec.encode(codec.decode(Group, composed)) == codec.encode(group)


def test_a_newer_schema_is_refused_by_name(make_trajectory):
    _, kind, fields = msgpack.unpackb(codec.encode(Task("t", "e", 0)))
    newer = msgpack.packb([codec.SCHEMA + 1, kind, fields])
    with pytest.raises(SchemaVersionError, match=f"schema {codec.SCHEMA + 1}"):
        codec.decode(Task, newer)


def test_a_missing_field_takes_its_default_and_an_unknown_one_is_refused():
    schema, kind, fields = msgpack.unpackb(codec.encode(Task("t", "e", 0)))
    del fields["options"]
    assert codec.decode(Task, msgpack.packb([schema, kind, fields])).options == {}
    with pytest.raises(RecordError, match="no field 'colour'"):
        codec.decode(Task, msgpack.packb([schema, kind, fields | {"colour": 1}]))
    del fields["seed"]
    with pytest.raises(RecordError, match="lacks seed"):
        codec.decode(Task, msgpack.packb([schema, kind, fields]))


@pytest.mark.parametrize(
    ("array", "rule"),
    [
        (["<i4", [3], b"\0" * 8], "8 bytes for shape"),
        (["<i8", [1], b"\0" * 8], "int32 array"),
        (["|O", [1], b"\0" * 8], "int32 array"),
        (["<i4", [-1], b""], "counts"),
        (["<i4", [2**62, 2**62], b""], "counts"),
        (["<i4", [True], b"\0" * 4], "counts"),
        ([1, 2], "int32 array"),
        ("abc", "int32 array"),
    ],
)
def test_an_array_whose_bytes_do_not_match_is_refused(array, rule):
    mask = ["|b1", [2], b"\1\0"]
    schema_1 = {"kind": "reflect", "token_ids": ["<i4", [2], b"\0" * 8], "response_mask": mask}
    data = msgpack.packb([1, "AuxSample", schema_1])
    assert codec.decode(AuxSample, data).response_mask.tolist() == [True, False]
    with pytest.raises(RecordError, match=rule):
        codec.decode(AuxSample, msgpack.packb([1, "AuxSample", schema_1 | {"token_ids": array}]))


@pytest.mark.parametrize(
    ("arrays", "rule"),
    [
        ([[[2], [2]], b"\0" * 9], "9 bytes for shapes"),
        ([[[2], [2]], b"\0" * 11], "11 bytes for shapes"),
        ([[[2], [1]], b"\0" * 8 + b"\2"], "other than 0 and 1"),
        ([[[2]], b"\0" * 8], "2 shapes"),
        ([[[2], [2], [0]], b"\0" * 10], "2 shapes"),
        ([[[-1], [2]], b""], "counts"),
        ([[[2**62, 2**62], [2]], b""], "counts"),
        ([[[1] * 5, [2]], b"\0" * 6], "counts"),
        ([[[True], [2]], b"\0" * 6], "counts"),
        ([[2, 2], b"\0" * 10], "counts"),
        ([[[2], [2]], "text"], "shapes and elements"),
        ([[[2], [2]]], "shapes and elements"),
        ({}, "shapes and elements"),
        (None, "shapes and elements"),
    ],
)
def test_arrays_whose_bytes_do_not_match_are_refused(arrays, rule):
    sample = AuxSample("reflect", np.arange(2, dtype=np.int32), np.array([True, False]))
    schema, kind, fields = msgpack.unpackb(codec.encode(sample))
    assert fields["arrays"] == [[[2], [2]], b"\0\0\0\0\1\0\0\0\1\0"]
    for changed in (fields | {"arrays": arrays}, {"arrays": arrays} | fields | {"arrays": arrays}):
        with pytest.raises(RecordError, match=rule):
            codec.decode(AuxSample, msgpack.packb([schema, kind, changed]))


def test_an_array_both_by_itself_and_with_the_others_or_not_at_all_is_refused():
    sample = AuxSample("reflect", np.arange(2, dtype=np.int32), np.array([True, False]))
    schema, kind, fields = msgpack.unpackb(codec.encode(sample))
    with pytest.raises(RecordError, match="token_ids twice"):
        twice = fields | {"token_ids": ["<i4", [2], b"\0" * 8]}
        codec.decode(AuxSample, msgpack.packb([schema, kind, twice]))
    with pytest.raises(RecordError, match="lacks response_mask, token_ids"):
        codec.decode(AuxSample, msgpack.packb([schema, kind, {"kind": "reflect"}]))
    with pytest.raises(RecordError, match="no field 'arrays'"):
        task = {"task_id": "t", "env": "e", "seed": 0, "arrays": fields["arrays"]}
        codec.decode(Task, msgpack.packb([schema, "Task", task]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93",
        b"\x80",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        msgpack.packb([0, "Task", {}]),
        msgpack.packb([1, "Group", {}]),
        msgpack.packb([1, "Task", []]),
        msgpack.packb([1, "Task", {"task_id": 3, "env": "e", "seed": 0}]),
        msgpack.packb([1, "Task", {"task_id": "t", "env": "e", "seed": True}]),
        msgpack.packb([1, "Task", {"task_id": "t", "env": "e", "seed": 2**63}]),
        b"\x93\x01\xa4Task\x82\xa3env\xa1e\xa3env\xa1f",
        b"cos\nsystem\n(S'true'\ntR.",
    ],
)
def test_bytes_that_are_no_record_are_a_record_error(data):
    with pytest.raises(RecordError):
        codec.decode(Task, data)


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_random_damage_is_an_error_or_a_record_and_nothing_else(noise, at, byte):
    damaged = bytearray(codec.encode(Task("t", "e", 0, {"a": [1, 2], "b": "c"})))
    damaged[at % len(damaged)] = byte
    for data in (noise, bytes(damaged)):
        with suppress(RecordError):
            codec.decode(Task, data)


def test_values_of_the_wrong_type_are_refused_when_written():
    with pytest.raises(RecordError, match=r"Task\.seed"):
        codec.encode(Task("t", "e", 1.5))
    with pytest.raises(RecordError, match="plain values"):
        codec.encode(Task("t", "e", 1, {"x": object()}))
    deep = []
    for _ in range(30):
        deep = [deep]
    with pytest.raises(RecordError, match="deeper"):
        codec.encode(Task("t", "e", 1, {"x": deep}))


def test_numpy_scalars_are_written_as_numbers(make_trajectory):
    trajectory = replace(make_trajectory(), reward=np.float32(0.5), seed=np.int64(3))
    again = codec.decode(Trajectory, codec.encode(trajectory))
    assert (again.reward, again.seed) == (0.5, 3)


def test_a_header_beyond_its_limit_is_refused_on_both_sides():
    with pytest.raises(RecordError, match="limit"):
        codec.pack({"x": "y" * codec.HEADER_LIMIT})
    with pytest.raises(RecordError, match="limit"):
        codec.unpack(b"\0" * (codec.HEADER_LIMIT + 1))
    assert codec.unpack(codec.pack({"x": [1, None]})) == {"x": [1, None]}


TWO = np.array([5, 6], dtype=np.int32)
GOLDEN = [  # as each schema wrote them
    (
        Task("t", "e", 7, {"a": True}),
        "9301a45461736b84a77461736b5f6964a174a3656e76a165a47365656407a76f7074696f6e7381a161c3",
        "9302a45461736b84a77461736b5f6964a174a3656e76a165a47365656407a76f7074696f6e7381a161c3",
    ),
    (
        AuxSample("retry", TWO, TWO > 5),
        "9301a941757853616d706c6583a46b696e64a57265747279a9746f6b656e5f69647393a33c69349102c408"
        "0500000006000000ad726573706f6e73655f6d61736b93a37c62319102c4020001",
        "9302a941757853616d706c6582a46b696e64a57265747279a6617272617973929291029102c40a"
        "05000000060000000001",
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: type(g[0]).__name__)
def test_the_golden_records_of_every_schema_still_read(golden):
    record, *written = golden[0], *map(bytes.fromhex, golden[1:])
    assert len(written) == codec.SCHEMA and codec.encode(record) == written[-1]
    for data in written:
        assert codec.encode(codec.decode(type(record), data)) == written[-1]

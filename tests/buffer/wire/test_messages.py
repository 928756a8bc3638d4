"""The quick way to read and write records agrees with the careful one, or leaves it the work."""

from contextlib import suppress
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.client import calls
from buffer.groups import incoming
from buffer.storage import checksums
from buffer.storage.rows import DrawRow, GroupRow, Status
from buffer.wire import messages
from buffer.wire.frames import join_records, split_records
from r3l import codec, plain, quick
from r3l.errors import RecordError
from r3l.records import (
    AuxSample,
    Group,
    GroupPlan,
    ReflectionRecord,
    SlotResult,
    Task,
    Trajectory,
    attempt_arrays,
)


def _attempt(steps=2, tokens=9, **more):
    spans = np.array([[3 * k, 3 * k + 2] for k in range(steps)], dtype=np.int32)
    mask = np.zeros(max(tokens, 3 * steps), dtype=np.bool_)
    for start, end in spans:
        mask[start:end] = True
    return Trajectory(
        **{
            "role": "base",
            "slot": 0,
            "token_ids": np.arange(len(mask), dtype=np.int32),
            "response_mask": mask,
            "logprobs": np.full(len(mask), -0.5, dtype=np.float32),
            "step_spans": spans,
            "step_versions": np.arange(5, 5 + steps, dtype=np.int32),
            "step_seconds": np.zeros(steps, dtype=np.float32),
            "reward": 0.5,
            "system": "s",
            "observations": ("o",) * (steps + 1),
            "actions": ("a",) * steps,
        }
        | more
    )


def _result(**more):
    aux = AuxSample("retry", np.arange(3, dtype=np.int32), np.array([False, True, True]))
    thought = ReflectionRecord("{}", outcome="failure", pivot=1, tokens=3, version=2, seconds=0.5)
    return SlotResult("base", 0, "done", "", _attempt(**more), thought, (aux,))


RECORDS = [
    _result(),
    SlotResult("distilled", 3, "failed", cause="engine"),
    Group("g1", Task("t", "e", 1, {"a": [1, {"b": None}]}), GroupPlan(2), "complete",
          (_result(), SlotResult("base", 1, "not_triggered")), times={"leased": 1.5},
          fingerprints={3: "x", -1: ""}),
    GroupRow("g1", "t", 3, GroupPlan(2, 1), "filling", resolved=(("base", 0), ("distilled", 0)),
          rewards=(0.5, -1.0), times={"leased": 2.0}, fingerprints={7: "abc"}, steps=(3, 4)),
    DrawRow(1, "r", "learner", 3, ("g1", "g2"), "fifo", 1.5, (1.0, 1.0), (0.5, 2.0)),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_both_ways_write_the_same_bytes_and_read_the_same_record(record):
    data = codec.encode(record)
    assert codec.encode_unchecked(record) == data
    assert codec.encode_together([record, record]) == (data + data, (len(data), len(data)))
    quickly = quick.reader(type(record)).read(codec.body(type(record), data))
    assert (
        codec.encode(quickly) == data == codec.encode(codec._decode_carefully(type(record), data))
    )
    assert codec.encode(codec.decode(type(record), memoryview(data))) == data


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 255)), min_size=1, max_size=6))
def test_what_is_damaged_is_read_alike_quickly_and_carefully(damage):
    damaged = bytearray(codec.encode(_result()))
    for at, byte in damage:
        damaged[at % len(damaged)] = byte
    _agree(bytes(damaged))


def _agree(data):
    """Both readers and the service's check take the bytes for the same, or none does."""
    try:
        carefully = codec._decode_carefully(SlotResult, data)
    except RecordError:
        for read in (lambda: codec.decode(SlotResult, data), lambda: incoming.check(data)):
            with pytest.raises(RecordError):
                read()
        with suppress(quick.Unusual), pytest.raises(RecordError):
            quick.reader(SlotResult).read(codec.body(SlotResult, data))
    else:
        assert codec.encode(codec.decode(SlotResult, data)) == codec.encode(carefully)
        assert incoming.check(data)[:-1] == incoming.check(codec.encode(carefully))[:-1]


def _schema_1(**changes):
    """A slot result as schema 1 wrote it, with other values of these fields."""
    _, kind, fields = msgpack.unpackb(codec.encode(_result()))
    fields["trajectory"] = plain._take_apart(fields["trajectory"], Trajectory)
    fields["aux"] = [plain._take_apart(aux, AuxSample) for aux in fields["aux"]]
    fields["trajectory"] |= {k: v for k, v in changes.items() if k in fields["trajectory"]}
    fields |= {k: v for k, v in changes.items() if k not in fields["trajectory"]}
    return [1, kind, fields]


def _changed(**changes):
    """The same as it is written today, where the arrays can stand together."""
    _, kind, fields = _schema_1(**changes)
    inner = fields["trajectory"]
    dtypes = plain.arrays_of(Trajectory)
    if inner and all(inner[name][0] == dtype.str for name, dtype in dtypes.items()):
        plain._put_together(inner, dtypes)
    return msgpack.packb([codec.SCHEMA, kind, fields])


def test_what_schema_1_wrote_is_read_as_it_was_meant():
    data = msgpack.packb(_schema_1())
    assert codec.encode(codec.decode(SlotResult, data)) == codec.encode(_result())
    assert incoming.check(data)[:-1] == incoming.check(codec.encode(_result()))[:-1]
    assert incoming.check(data).checksum == checksums.checksum(data)
    assert data.endswith(codec.result_body(data))
    group = codec.encode_group(replace(RECORDS[2], results=()), [data, codec.encode(_result())])
    first, second = codec.decode(Group, group).results
    assert codec.encode(first) == codec.encode(second)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": ["<i4", [9], b"\0" * 32]},
        {"token_ids": ["<i4", [8], b"\0" * 32]},
        {"token_ids": ["<i4", [3, 3], b"\0" * 36]},
        {"token_ids": ["<f4", [9], b"\0" * 36]},
        {"response_mask": ["|b1", [9], b"\2" * 9]},
        {"response_mask": ["|b1", [9], b"\1" * 9]},
        {"response_mask": ["|b1", [9], b"\1\1\0\1\2\0\0\0\0"]},
        {"step_spans": ["<i4", [2, 2], np.array([0, 2, 1, 5], "<i4").tobytes()]},
        {"step_spans": ["<i4", [4], b"\0" * 16]},
        {"step_spans": ["<i4", [2, 2], np.array([0, 2, 3, 99], "<i4").tobytes()]},
        {"step_versions": ["<i4", [1], b"\0" * 4]},
        {"step_seconds": ["<f4", [2, 1], b"\0" * 8]},
        {"actions": ["a"]},
        {"observations": ["a", "b", 3]},
        {"reward": float("nan")},
        {"reward": True},
        {"pivot": 2},
        {"pivot": -2},
        {"seed": 2**63},
        {"system": b"s"},
        {"finish": None},
        {"role": "critic"},
        {"slot": 1},
        {"status": "failed"},
        {"cause": "x"},
        {"trajectory": None},
        {"reflection": {"text": 3}},
        {"aux": [{"kind": "retry", "token_ids": ["<i4", [1], b"abcd"],
                  "response_mask": ["|b1", [2], b"\1\1"]}]},
        {"colour": 1},
    ],
    ids=str,
)  # fmt: skip
def test_everything_a_slot_result_may_not_be_is_refused_by_both_and_by_the_service(changes):
    for data in (_changed(**changes), msgpack.packb(_schema_1(**changes))):
        with pytest.raises(RecordError):
            codec._decode_carefully(SlotResult, data)
        _agree(data)


@pytest.mark.parametrize(
    "arrays",
    [
        lambda shapes, raw: [shapes[::-1], raw],
        lambda shapes, raw: [shapes[:5], raw],
        lambda shapes, raw: [[*shapes, [0]], raw],
        lambda shapes, raw: [[*shapes[:2], [4], *shapes[3:]], raw],
        lambda shapes, raw: [[*shapes[:2], [2, 1, 2], *shapes[3:]], raw],
        lambda shapes, raw: [[shapes[0], [8], *shapes[2:]], raw],
        lambda shapes, raw: [[[8], [10], *shapes[2:]], raw],
        lambda shapes, raw: [shapes, raw[:-1]],
        lambda shapes, raw: [shapes, raw + b"\0"],
        lambda shapes, raw: [shapes, raw[:-1] + b"\1"],
        lambda shapes, raw: [shapes, raw[:-1] + b"\2"],
        lambda shapes, raw: [shapes, raw, b""],
        lambda shapes, raw: [[[2**62]] * 6, raw],
        lambda shapes, raw: raw,
    ],
)
def test_arrays_that_are_not_those_of_an_attempt_are_refused(arrays):
    schema, kind, fields = msgpack.unpackb(codec.encode(_result()))
    fields["trajectory"]["arrays"] = arrays(*fields["trajectory"]["arrays"])
    data = msgpack.packb([schema, kind, fields])
    with pytest.raises(RecordError):
        codec._decode_carefully(SlotResult, data)
    _agree(data)


def test_the_service_looks_into_every_field_that_msgspec_leaves_encoded():
    """A field added to these records that is no plain value needs a line in
    buffer.groups.incoming."""
    left = {kind: {name for name, _ in quick.reader(kind)._unfinished}
            for kind in (SlotResult, Trajectory, ReflectionRecord)}  # fmt: skip
    assert left == {
        SlotResult: {"trajectory", "reflection", "aux"},
        Trajectory: set(),
        ReflectionRecord: set(),
    }
    shapes = {name: list(shape) for name, _, shape in attempt_arrays(9, 2)}
    assert [shapes[name] for name in plain.arrays_of(Trajectory)] == [
        [9], [9], [2, 2], [2], [2], [9]
    ]  # fmt: skip


def test_what_an_older_writer_left_out_and_an_integral_reward_are_taken():
    schema, kind, fields = msgpack.unpackb(codec.encode(_result()))
    del fields["aux"], fields["trajectory"]["feedback"]
    for data in (msgpack.packb([schema, kind, fields]), _changed(reward=2)):
        _agree(data)
        assert incoming.check(data).reward in (0.5, 2.0)


def test_a_field_twice_is_refused_wherever_it_is():
    data = codec.encode(_result())
    for name in ("cause", "finish", "text"):
        key = bytes([0xA0 | len(name)]) + name.encode()
        at = data.index(key)
        twice = data[:at] + key + b"\xa0" + data[at:]
        if name == "cause":
            twice = twice.replace(b"\x87", b"\x88", 1)
        elif name == "text":
            twice = twice.replace(b"\x87\xa4text", b"\x88\xa4text", 1)
            twice = twice.replace(b"\x87" + key + b"\xa0" + key, b"\x88" + key + b"\xa0" + key, 1)
        else:
            twice = twice.replace(b"\x8d\xa4role", b"\x8e\xa4role", 1)
        assert len(twice) == len(data) + len(key) + 1 and twice.count(key) == data.count(key) + 1
        with pytest.raises(RecordError, match="twice"):
            codec.decode(SlotResult, twice)
        with pytest.raises(RecordError, match="twice"):
            incoming.check(twice)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_maps_of_every_size_are_read_quickly_and_a_key_twice_is_refused(count):
    status = Status("drawn", "", {f"{number:05}": number / 2 for number in range(count)})
    data = codec.encode(status)
    assert quick.reader(Status).read(codec.body(Status, data)) == status
    if count > 1:
        twice = data.replace(b"\xa500001", b"\xa500000")
        with pytest.raises(quick.Unusual):
            quick.reader(Status).read(codec.body(Status, twice))
        with pytest.raises(RecordError, match="twice"):
            codec.decode(Status, twice)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=30), st.integers(1, 100))
def test_records_in_frames_come_apart_as_they_were(records, frame_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("buffer.wire.frames.FRAME_BYTES", frame_bytes)
        joined, sizes = join_records(records), [len(record) for record in records]
    assert all(len(frame) <= max(frame_bytes, *sizes) for frame in joined)
    assert split_records(joined, sizes) == records
    for wrong in ([*sizes, 1], sizes[:-1], [size + 1 for size in sizes], [0, *sizes]):
        if wrong != sizes:
            with pytest.raises(RecordError):
                split_records(joined, wrong)


def test_drawn_groups_are_decoded_when_looked_at_and_a_damaged_one_is_named_then():
    group = RECORDS[2]
    good, now = codec.encode(group), Status("drawn", "", {"leased": 1.0})
    records = [good, good[:-1] + b"\xc1", good]
    head = messages.DrawHead(1, 0, now=(now,) * 3, sizes=tuple(map(len, records)))
    drawn = calls._draw(head, join_records(records))
    assert len(drawn.groups) == 3 and drawn.groups[0].state == "drawn"
    assert drawn.groups[0] is drawn.groups[0] and drawn.groups[-1].task == group.task
    assert [g.group_id for g in drawn.groups[::2]] == ["g1", "g1"]
    for look in (lambda: drawn.groups[1], lambda: list(drawn.groups)):
        with pytest.raises(RecordError):
            look()
    with pytest.raises(IndexError):
        drawn.groups[3]


def test_values_that_msgspec_cannot_write_are_left_to_the_careful_writer():
    attempt = replace(_attempt(), reward=np.float32(0.5), seed=np.int64(3))
    assert codec.encode_unchecked(attempt) == codec.encode(attempt)
    turned = replace(_attempt(), step_spans=np.asfortranarray(_attempt().step_spans))
    assert codec.encode_unchecked(turned) == codec.encode(_attempt())
    for wrong in ("no sample", replace(RECORDS[3])):
        with pytest.raises(RecordError, match=r"SlotResult\.aux"):
            codec.encode_unchecked(SlotResult("base", 0, "not_triggered", aux=(wrong,)))
    with pytest.raises(RecordError, match=r"Task\.seed"):
        codec.encode_unchecked(Task("t", "e", object()))


def test_what_todays_client_writes_is_checked_without_making_a_record(done, monkeypatch):
    results = [done(length=length, version=3, reward=0.5) for length in (3, 8, 4000)]
    together, sizes = codec.encode_together(results)
    encoded = split_records([bytes(together)], sizes)
    monkeypatch.setattr(codec, "decode", None)  # what the slow way would call
    for data in encoded:
        told = incoming.check(data)
        assert (told.role, told.slot, told.status, told.reward, told.oldest) == (
            "base", 0, "done", 0.5, 3
        )  # fmt: skip

"""Messages: their records are checked completely, and come apart as they were put together."""

import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.client import calls
from buffer.groups import incoming
from buffer.storage.rows import DrawRow, GroupRow, Status
from buffer.wire.operations import DrawHead
from r3l import codec
from r3l.errors import RecordError
from r3l.records import (
    AuxSample,
    Group,
    GroupPlan,
    ReflectionRecord,
    SlotResult,
    Task,
    Trajectory,
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
def test_every_record_comes_back_as_the_same_bytes(record):
    data = codec.encode(record)
    assert codec.encode(codec.decode(type(record), data)) == data
    assert codec.encode(codec.decode(type(record), memoryview(data))) == data


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 255)), min_size=1, max_size=6))
def test_what_is_damaged_is_a_record_error_or_a_result_that_can_be_read_again(damage):
    damaged = bytearray(codec.encode(_result()))
    for at, byte in damage:
        damaged[at % len(damaged)] = byte
    try:
        outcome = incoming.check(bytes(damaged))
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
    schema, kind, fields = msgpack.unpackb(codec.encode(_result()))
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
        {"response_mask": _array([2] * 9, "u1")},
        {"response_mask": ["|b1", [9], b"\2" * 9]},
        {"response_mask": ["|b1", [9], b"\1" * 9]},
        {"response_mask": ["|b1", [9], b"\1\1\0\1\2\0\0\0\0"]},
        {"step_spans": _array([[0, 2], [1, 5]], "<i4")},
        {"step_spans": _array([[0, 2], [3, 99]], "<i4")},
        {"step_spans": _array([0] * 4, "<i4")},
        {"step_spans": _array(0, "<i4")},
        {"step_versions": _array([0], "<i4")},
        {"step_seconds": _array([[0], [0]], "<f4")},
        {"actions": ["a"]},
        {"actions": "ab"},
        {"observations": ["a", "b", 3]},
        {"reward": float("nan")},
        {"reward": True},
        {"pivot": 2},
        {"pivot": -2},
        {"seed": 2**63},
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
def test_everything_a_slot_result_may_not_be_is_refused_by_the_service(changes):
    with pytest.raises(RecordError):
        incoming.check(_changed(**changes))


def test_the_outcome_of_a_slot_result_says_how_the_slot_was_resolved():
    data = codec.encode(_result(step_versions=np.array([7, 5], dtype=np.int32)))
    outcome = incoming.check(data)
    assert outcome[:-2] == ("base", 0, "done", "", 0.5, 5)
    assert outcome.checksum == zlib.crc32(codec.body(SlotResult, data))
    failed = incoming.check(codec.encode(SlotResult("distilled", 3, "failed", cause="engine")))
    assert failed[:-2] == ("distilled", 3, "failed", "engine", None, -1)


def test_fields_with_a_default_may_be_missing_and_a_reward_may_be_integral():
    schema, kind, fields = msgpack.unpackb(codec.encode(_result()))
    del fields["aux"], fields["trajectory"]["feedback"]
    assert incoming.check(msgpack.packb([schema, kind, fields])).reward == 0.5
    assert incoming.check(_changed(reward=2)).reward == 2.0


def test_drawn_groups_are_decoded_when_looked_at_and_a_damaged_one_is_named_then():
    group = RECORDS[2]
    good, now = codec.encode(group), Status("drawn", "", {"leased": 1.0})
    records = [good, good[:-1] + b"\xc1", good]
    read = calls.draw(3, 0).parse
    drawn = read(DrawHead(1, 0, now=(now,) * 3), records)
    assert drawn.records == records
    with pytest.raises(RecordError, match="2 groups in a reply that announces 3"):
        read(DrawHead(1, 0, now=(now,) * 3), records[:2])
    assert len(drawn.groups) == 3 and drawn.groups[0].state == "drawn"
    assert drawn.groups[0] is drawn.groups[0] and drawn.groups[-1].task == group.task
    assert [g.group_id for g in drawn.groups[::2]] == ["g1", "g1"]
    for look in (lambda: drawn.groups[1], lambda: list(drawn.groups)):
        with pytest.raises(RecordError):
            look()
    with pytest.raises(IndexError):
        drawn.groups[3]

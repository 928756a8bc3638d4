"""Rows: what follows from the mutable state of a group."""

import pytest

from buffer.storage.stored_rows import DrawRow, GroupRow
from r3l import codec
from r3l.records import (
    AttemptKey,
    Group,
    GroupPlan,
    SlotResult,
    Task,
)
from tests.buffer.fakes import full_result, thought

NEW = GroupRow("g0000000001", "t", 0, GroupPlan(3), "leased", actor="a")


@pytest.mark.parametrize(
    ("changes", "unfinished", "held", "closed"),
    [
        ({}, True, True, False),
        ({"actor": ""}, True, False, False),
        ({"lease_expired": True}, True, False, False),
        ({"state": "filling"}, True, True, False),
        ({"state": "complete"}, False, False, False),
        ({"state": "complete", "purpose": "eval"}, False, False, True),
        ({"state": "drawn"}, False, False, False),
        ({"state": "trained"}, False, False, True),
        ({"state": "expired"}, False, False, True),
    ],
    ids=str,
)
def test_a_group_is_unfinished_held_or_closed_by_its_state_and_lease(
    changes, unfinished, held, closed
):
    row = NEW.with_changes(**changes)
    assert (row.unfinished, row.has_holder, row.closed) == (unfinished, held, closed)


def test_a_group_is_whole_when_every_slot_of_its_plan_is_resolved():
    assert NEW.slots == 3 and not NEW.all_resolved
    assert NEW.with_changes(resolved_slots=(0, 2, 1)).all_resolved


def test_contrast_is_zero_without_two_rewards_that_differ():
    assert [NEW.with_changes(rewards=r).contrast for r in ((), (0.5,), (0.5, 0.5))] == [
        0.0,
        0.0,
        0.0,
    ]
    assert NEW.with_changes(rewards=(0.5, -1.0, 0.0)).contrast == 1.5


def test_rewards_of_base_attempts_are_told_apart_from_those_of_retries():
    resolved, of = (3, 1, 2, 0), (-1, -1, 1, -1)
    row = NEW.with_changes(
        resolved_slots=resolved, of=of, played=(1, 2, 0), rewards=(0.5, 1.0, 0.0)
    )
    assert row.attempts == [(0, -1, 0.0), (1, -1, 0.5), (2, 1, 1.0)]
    assert row.base_rewards == [0.0, 0.5] and row.done == 3


RECORDS = [
    full_result(),
    SlotResult(3, "failed", cause="engine", of=1),
    Group("g1", Task("t", "e", 1, {"a": [1, {"b": None}]}), GroupPlan(2), "complete",
          (full_result(), SlotResult(1, "skipped")), (thought(),), times={"leased": 1.5},
          fingerprints={3: "x", -1: ""}),
    GroupRow("g1", "t", 3, GroupPlan(3, "again", (AttemptKey("g0", 1),)), "filling",
          resolved_slots=(0, 2), of=(-1, 0), played=(0, 2), rewards=(0.5, -1.0),
          reflections=(("reflect-0", 7),),
          times={"leased": 2.0}, fingerprints={7: "abc"}, steps=(3, 4)),
    DrawRow(1, "r", "learner", 3, ("g1", "g2"), "fifo", 1.5, (1.0, 1.0), (0.5, 2.0)),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_every_record_of_a_store_comes_back_as_the_same_bytes(record):
    data = codec.encode(record)
    assert codec.encode(codec.decode(type(record), data)) == data
    assert codec.encode(codec.decode(type(record), memoryview(data))) == data

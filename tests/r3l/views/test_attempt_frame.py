"""Rows of attempts; frames of stores and services are in tests/buffer/storage/test_frames.py."""

import pytest

from r3l.errors import UserError
from r3l.records import Group, GroupPlan, SlotResult, Task
from r3l.views.attempt_frame import AttemptRow, library, made, rows


def test_a_row_is_a_slot_and_what_only_an_attempt_has_is_none_without_one(make_trajectory):
    retry = make_trajectory([2, 3, 4], role="distilled", parent=0, pivot=1, reward=1.0)
    results = (
        SlotResult("distilled", 0, "done", trajectory=retry),
        SlotResult("base", 0, "failed", cause="env"),
    )
    group = Group("g1", Task("t", "e", 0), GroupPlan(1, 1), "trained", results)
    failed, done = rows(group, [3, 5])
    assert (failed.cause, failed.reward, failed.parent, failed.staleness) == ("env", *[None] * 3)
    assert (done.parent, done.pivot, done.steps, done.tokens) == (0, 1, 3, 7)
    assert (done.step, done.uses, done.staleness) == (5, 2, 4)


def test_a_table_has_its_columns_also_without_rows():
    assert made("arrow", []).column_names == [*AttemptRow.__struct_fields__]
    with pytest.raises(UserError, match="kind 'polars'"):
        library("polars")

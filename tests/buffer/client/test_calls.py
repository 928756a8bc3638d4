"""Calls: what a request holds, and what is made of its reply."""

import pytest
from msgspec.structs import replace

from buffer.client.calls import Draw
from buffer.storage.stored_rows import DrawRow, RecalledRow, Status
from buffer.wire.operations import DrawHead, Groups
from r3l import codec
from r3l.algorithms.batch import Batch
from r3l.errors import RecordError
from r3l.records import Group, GroupPlan, Recalled, ReflectionRecord, SlotResult, Task
from tests.buffer.fakes import calls, full_result, thought

ROW = DrawRow(7, "r", "learner", 5, ("g1",), "fifo", 1.5)


def test_a_request_larger_than_the_limit_is_never_sent(done):
    with pytest.raises(RecordError, match="limit"):
        calls.put("g", "a", done(length=3 << 20))


def test_drawn_groups_are_decoded_and_checked_when_they_are_read():
    task = Task("t", "e", 1, {"a": [1, {"b": None}]})
    group = Group("g1", task, GroupPlan(1), "complete", (full_result(),))
    good, now = codec.encode(group), Status("drawn", "", {"leased": 1.0})
    records = [good, good[:-1] + b"\xc1", good]
    read = calls.draw(3, 0).parse
    head = DrawHead(ROW, (now,) * 3)
    with pytest.raises(RecordError, match="has 2 of 3 groups"):
        read(head, records[:2])
    drawn = read(head, records)
    assert drawn.records == records and (drawn.draw_id, drawn.version) == (7, 5)
    with pytest.raises(RecordError):
        drawn.groups[0]
    drawn = read(head, [good] * 3)
    assert drawn.groups is drawn.groups and drawn.groups[-1].task == group.task
    assert [(g.group_id, g.state) for g in drawn.groups] == [("g1", "drawn")] * 3


def test_recalled_attempts_that_did_not_come_are_lost():
    joined = Recalled("g1", "g0", full_result().trajectory)
    row = replace(ROW, recalled=(RecalledRow("g1", "g0", 0),) * 3)
    drawn = calls.draw(1, 0).parse(DrawHead(row), [codec.encode(joined)])
    assert [one.group_id for one in drawn.recalled] == ["g0"] and drawn.recall_lost == 2


def test_groups_that_were_asked_for_come_whole_or_not_at_all():
    with pytest.raises(RecordError, match="has 0 groups but announces 1"):
        calls.get(["g1"]).parse(Groups((Status("drawn", "", {}),)), [])


def test_a_draw_without_groups_is_none_and_says_why_when_it_waits_no_longer():
    said = []
    draw = calls.draw(1, 0, explain=said.append)
    for reason in ("few are there", "none is there"):
        assert draw.parse(DrawHead(reason=reason), []) is None
    draw.gave_up()
    assert said == ["none is there"]


def test_a_draw_is_short_as_text(done):
    group = Group("g1", Task("t", "e", 1), GroupPlan(1), "drawn", (done(),))
    told = repr(Draw.read(ROW, (Status("drawn", "", {}),), [codec.encode(group) + b"x" * 1000]))
    assert told.startswith("Draw(") and "row=DrawRow(draw_id=7" in told and len(told) < 450


def test_a_draw_is_a_batch_whose_groups_are_decoded_once_also_with_answers():
    group = Group("g1", Task("t", "e", 1), GroupPlan(1), "complete", (full_result(),))
    joined = Recalled("g1", "g0", full_result().trajectory)
    row = replace(ROW, weights=(0.5,), replayed=("g1",), recalled=(RecalledRow("g1", "g0", 0),))
    records = [codec.encode(group), codec.encode(joined)]
    drawn = calls.draw(1, 0).parse(DrawHead(row, (Status("drawn", "", {}),)), records)
    assert isinstance(drawn, Batch) and (drawn.weight(0), drawn.replayed) == (0.5, ("g1",))
    [own, other] = drawn.sources(drawn.groups[0])
    assert (own.into, own.group_id, other.into, other.group_id) == ("g1", "g1", "g1", "g0")
    answered = drawn.answered({"key": 1})
    assert isinstance(answered, Draw) and answered.answers == {"key": 1}
    assert answered.groups[0] is drawn.groups[0] and answered.draw_id == 7


def test_results_and_reflections_are_put_in_one_request(done):
    put = calls.put("g", "a", [thought(), done(1), thought("other")]).arguments
    assert [codec.decode(ReflectionRecord, r).name for r in put.reflections] == [
        "reflect-0",
        "other",
    ]
    assert [codec.decode(SlotResult, r).slot for r in put.results] == [1]
    assert len(calls.put("g", "a", thought()).arguments.reflections) == 1

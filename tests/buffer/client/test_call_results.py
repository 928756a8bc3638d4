"""Results of calls: what is made of a reply, or of all its parts."""

import pytest
from msgspec.structs import replace

from buffer.client.call_results import Draw, Rest
from buffer.storage.stored_rows import DrawRow, RecalledRow, Status
from buffer.wire.operations import DrawHead, GetDrawn, Groups, Lease, Records
from r3l import codec
from r3l.algorithms.batch import Batch
from r3l.errors import RecordError
from r3l.records import Group, GroupPlan, Recalled, Task
from tests.buffer.fakes import calls, full_result, thought

ROW = DrawRow(7, "r", "learner", 5, ("g1",), "fifo", 1.5)


def test_drawn_groups_are_decoded_and_checked_when_they_are_read():
    task = Task("t", "e", 1, {"a": [1, {"b": None}]})
    group = Group("g1", task, GroupPlan(1), "complete", (full_result(),))
    good, now = codec.encode(group), Status("drawn", "", {"leased": 1.0})
    records = [good, good[:-1] + b"\xc1", good]
    read = calls.draw(3, 0).parse
    head = DrawHead(replace(ROW, groups=("g1",) * 3), (now,) * 3, frames=(1, 1, 1))
    with pytest.raises(RecordError, match="has 2 frames but announces 3"):
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
    head = DrawHead(replace(row, groups=()), frames=(0, 1, 0))
    drawn = calls.draw(1, 0).parse(head, [codec.encode(joined)])
    assert [one.group_id for one in drawn.recalled] == ["g0"] and drawn.recall_lost == 2


def test_groups_that_were_asked_for_come_whole_or_not_at_all():
    with pytest.raises(RecordError, match="has 0 frames but announces 1"):
        calls.get(["g1"]).parse(Groups((Status("drawn", "", {}),), (1,)), [])
    with pytest.raises(RecordError, match="no group, but 1 are missing"):
        calls.get(["g1"]).parse(Groups(), [])


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
    drawn = calls.draw(1, 0).parse(
        DrawHead(row, (Status("drawn", "", {}),), frames=(1, 1)), records
    )
    assert isinstance(drawn, Batch) and (drawn.weight(0), drawn.replayed) == (0.5, ("g1",))
    [own, other] = drawn.sources(drawn.groups[0])
    assert (own.into, own.group_id, other.into, other.group_id) == ("g1", "g1", "g1", "g0")
    answered = drawn.with_answers({"key": 1})
    assert isinstance(answered, Draw) and answered.answers == {"key": 1}
    assert answered.groups[0] is drawn.groups[0] and answered.draw_id == 7


def test_a_draw_is_whole_once_all_its_parts_have_come():
    group = codec.encode(Group("g1", Task("t", "e", 1), GroupPlan(1), "drawn", (full_result(),)))
    row = replace(ROW, groups=("g1", "g2", "g3"), recalled=(RecalledRow("g1", "g0", 0),))
    now = (Status("drawn", "", {}),) * 3
    part = calls.draw(3, 0).parse(DrawHead(row, now, frames=(1,), left=3), [group])
    assert isinstance(part, Rest) and part.line == "draw 7: 1 of 4 records"
    assert part.call.arguments == GetDrawn(7, 1)
    part = part.call.parse(Records((2,), 2), [group[:9], group[9:]])
    assert isinstance(part, Rest) and part.call.arguments == GetDrawn(7, 2)
    with pytest.raises(RecordError, match="none of the 2 other records"):
        part.call.parse(Records((), 2), [])
    drawn = part.call.parse(Records((1, 0)), [group])
    assert isinstance(drawn, Draw) and drawn.records == [group] * 3
    assert len(drawn.groups) == 3 and drawn.recall_lost == 1


def test_groups_come_in_parts_until_all_are_there():
    encoded = codec.encode(Group("g1", Task("t", "e", 1), GroupPlan(1), "drawn", (full_result(),)))
    now = (Status("trained", "", {}),)
    part = calls.query(state="trained", limit=3).parse(Groups(now * 2, (1, 1), "g8"), [encoded] * 2)
    assert isinstance(part, Rest)
    assert (part.call.arguments.limit, part.call.arguments.before) == (1, "g8")
    part = part.call.parse(Groups((), (), "g5"), [])
    assert isinstance(part, Rest) and part.call.arguments.limit == 1
    assert len(part.call.parse(Groups(now, (1,)), [encoded])) == 3
    part = calls.get(["a", "b"]).parse(Groups(now, (1,)), [encoded])
    assert isinstance(part, Rest) and part.call.arguments.group_ids == ["b"]
    assert len(part.call.parse(Groups(now, (1,)), [encoded])) == 2


def test_the_results_of_a_lease_follow_it(done):
    task, plan = Task("t", "e", 1), GroupPlan(3)
    lease = Lease("g1", task, "train", "", plan, (), 9.0, following=(1, 1, 1))
    frames = [codec.encode(each) for each in (done(0), done(1), thought())]
    read = calls.lease("a", 0).parse(lease, frames)
    assert [codec.encode(each) for each in (*read.accepted, *read.partial)] == frames[:2]
    assert codec.encode(read.reflections[0]) == frames[2] and read.following == (0, 0, 0)
    with pytest.raises(RecordError, match="has 2 records but announces 3"):
        calls.lease("a", 0).parse(lease, frames[:2])

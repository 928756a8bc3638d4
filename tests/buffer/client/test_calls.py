"""Calls: what a request holds, and what is made of its reply."""

import pytest

from buffer.client.calls import Draw
from buffer.storage.rows import Status
from buffer.wire.operations import DrawHead
from r3l import codec
from r3l.errors import RecordError
from r3l.records import Group, GroupPlan, Task
from tests.buffer.fakes import calls, full_result


def test_a_request_larger_than_the_limit_is_never_sent(done):
    with pytest.raises(RecordError, match="limit"):
        calls.put("g", "a", done(length=3 << 20))


def test_drawn_groups_are_decoded_and_checked_when_they_are_read():
    task = Task("t", "e", 1, {"a": [1, {"b": None}]})
    group = Group("g1", task, GroupPlan(1), "complete", (full_result(),))
    good, now = codec.encode(group), Status("drawn", "", {"leased": 1.0})
    records = [good, good[:-1] + b"\xc1", good]
    read = calls.draw(3, 0).parse
    drawn = read(DrawHead(1, 0, now=(now,) * 3), records)
    assert drawn.records == records
    with pytest.raises(RecordError, match="has 2 groups but announces 3"):
        read(DrawHead(1, 0, now=(now,) * 3), records[:2])
    assert len(drawn.groups) == 3 and drawn.groups[0].state == "drawn"
    assert drawn.groups[0] is drawn.groups[0] and drawn.groups[-1].task == group.task
    assert [g.group_id for g in drawn.groups[::2]] == ["g1", "g1"]
    for look in (lambda: drawn.groups[1], lambda: list(drawn.groups)):
        with pytest.raises(RecordError):
            look()
    with pytest.raises(IndexError):
        drawn.groups[3]


def test_one_id_is_not_a_sequence_of_its_characters():
    assert calls.get("g1").arguments.group_ids == ("g1",)
    assert calls.renew(["g1", "g2"], "a").arguments.group_ids == ("g1", "g2")


def test_a_draw_without_groups_is_none_and_says_why_when_it_waits_no_longer():
    said = []
    draw = calls.draw(1, 0, explain=said.append)
    for reason in ("few are there", "none is there"):
        assert draw.parse(DrawHead(reason=reason), []) is None
    draw.gave_up()
    assert said == ["none is there"]


def test_a_draw_is_short_as_text(done):
    group = Group("g1", Task("t", "e", 1), GroupPlan(1), "drawn", (done(),))
    told = repr(Draw(7, [group], 5, records=[b"x" * 1000], replayed=("g1",)))
    assert told.startswith("Draw(draw_id=7, version=5") and len(told) < 200

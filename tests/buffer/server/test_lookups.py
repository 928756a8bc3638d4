"""Queries return exactly what they ask for, and lists in `stats` have a limit."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from buffer.server import lookups
from buffer.storage.transaction import read_group
from buffer.wire import parts
from buffer.wire.operations import GetDrawn, GetGroups, Groups, QueryGroups, Records
from buffer.wire.parts import joined
from r3l.errors import NotFound, RecordError
from r3l.records import GROUP_STATES, SlotResult


@pytest.fixture
def filled(make_desk, tasks, done):
    """Groups 1 and 2 evaluated under "x", 3 under "y", 4 and 5 trained, 6 failed, 7 leased."""
    desk = make_desk(groups_per_step=8)
    for tag, count in (("x", 2), ("y", 1)):
        desk.add(tasks(count, tag), "eval", tag)
        for _ in range(count):
            desk.put(desk.lease().group_id, done())
    desk.add(tasks(1))
    desk.complete(), desk.complete()
    desk.commit(desk.draw(2).draw_id, 1)
    failed = desk.lease(version=1).group_id
    desk.put(failed, SlotResult(0, "failed", cause="env"))
    desk.lease(version=1)
    return desk


def test_all_purposes_of_a_tag_are_listed_newest_first(make_desk, tasks):
    desk = make_desk()
    for purpose, prefix in (("eval", "x"), ("train", "t"), ("eval", "y")):
        desk.add(tasks(1, prefix), purpose)
        desk.lease()
    with desk.store.read() as txn:
        listed = [row.purpose for row in txn.listed(None, "", None)]
    assert listed == ["eval", "train", "eval"]


def _numbers(desk, rows):
    with desk.store.read() as txn:
        return [int(row.group_id[1:]) for row in rows(txn)]


def _queried(desk, asked):
    """The numbers of the groups of a query, and how many parts it took."""
    numbers, parts = [], 0
    with desk.store.read() as txn:
        while True:
            found, frames = lookups.query(txn, asked)
            records = joined(found.frames, frames)
            groups = [read_group(*each) for each in zip(records, found.now, strict=True)]
            numbers += [int(group.group_id[1:]) for group in groups]
            parts += 1
            if not found.before:
                return numbers, parts
            asked = replace(asked, limit=asked.limit - len(groups), before=found.before)


@pytest.mark.parametrize(
    ("purpose", "tag", "state", "limit", "wanted"),
    [
        (None, None, None, 9, [7, 6, 5, 4, 3, 2, 1]),
        (None, None, None, 2, [7, 6]),
        ("train", None, None, 9, [7, 6, 5, 4]),
        ("train", "", "expired", 9, [6]),
        ("eval", None, None, 2, [3, 2]),
        ("eval", "x", None, 9, [2, 1]),
        (None, "x", "complete", 1, [2]),
        (None, "y", "leased", 9, []),
        ("train", "x", None, 9, []),
        (None, None, "trained", 9, [5, 4]),
    ],
)
def test_a_query_returns_the_newest_groups_of_a_purpose_tag_and_state(
    filled, purpose, tag, state, limit, wanted
):
    assert _queried(filled, QueryGroups(purpose, tag, state, limit)) == (wanted, 1)


def test_a_long_answer_comes_in_parts_and_looks_at_few_rows_in_each(filled, monkeypatch):
    everything = QueryGroups(None, None, None, 9)
    monkeypatch.setattr(lookups, "PART_BYTES", 1)
    assert _queried(filled, everything) == ([7, 6, 5, 4, 3, 2, 1], 7)
    assert _queried(filled, QueryGroups(None, None, None, 3)) == ([7, 6, 5], 3)
    monkeypatch.setattr(lookups, "PART_BYTES", 1 << 20)
    monkeypatch.setattr(lookups, "ROWS_LIMIT", 2)
    assert _queried(filled, everything) == ([7, 6, 5, 4, 3, 2, 1], 4)
    assert _queried(filled, QueryGroups(None, "", "trained", 9)) == ([5, 4], 1)
    assert _queried(filled, QueryGroups(None, "x", "trained", 9)) == ([], 1)
    assert _queried(filled, QueryGroups(before="g0000000003")) == ([2, 1], 1)
    with filled.store.read() as txn, pytest.raises(RecordError, match="not a group's id"):
        lookups.query(txn, QueryGroups(before="g" * 600))


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    purpose=st.sampled_from([None, "train", "eval"]),
    tag=st.sampled_from([None, "", "x", "y", "z"]),
    state=st.sampled_from([None, *GROUP_STATES]),
    before=st.integers(0, 9),
)
def test_every_list_gives_what_a_scan_of_all_rows_gives(filled, purpose, tag, state, before):
    name = f"g{before:010d}" if before else ""
    with filled.store.read() as txn:
        scanned = [
            row.group_id
            for row in txn.rows(backwards=True)
            if row.listed_under(purpose, tag, state) and (not name or row.group_id < name)
        ]
        named = txn.candidates(purpose, tag, state, name)
        found = [n for n in named if txn.row(n).listed_under(purpose, tag, state)]
        assert found == scanned
        live = [row.group_id for row in txn.rows() if not row.closed]
        assert [row.group_id for row in txn.live()] == live


def test_the_history_of_a_task_lists_its_training_groups(filled):
    assert _numbers(filled, lambda txn: txn.finished("t0")) == [5, 4]
    assert _numbers(filled, lambda txn: txn.finished("t")) == []
    assert _numbers(filled, lambda txn: txn.finished("x0")) == []  # evaluated, not trained


def test_groups_and_draws_come_in_parts_of_few_records(filled, monkeypatch):
    names = ("g0000000002", "g0000000001", "g0000000007")
    with filled.store.read() as txn:
        assert len(lookups.groups(txn, GetGroups(names))[0].now) == 3
        monkeypatch.setattr(parts, "PART_BYTES", 1)
        assert len(lookups.groups(txn, GetGroups(names))[0].now) == 1
        assert lookups.groups(txn, GetGroups(())) == (Groups(), [])
        with pytest.raises(NotFound):
            lookups.groups(txn, GetGroups(("g0000000099",)))
        whole = list(lookups.drawn_records(txn, txn.draw(1)))
        found, left = [], 2
        while left:
            head, frames = lookups.get_drawn(txn, GetDrawn(1, len(found)))
            found, left = found + joined(head.frames, frames), head.left
        assert found == whole and len(whole) == 2
        assert lookups.get_drawn(txn, GetDrawn(1, 99)) == (Records(), [])
        with pytest.raises(NotFound, match="no draw 9"):
            lookups.get_drawn(txn, GetDrawn(9, 0))

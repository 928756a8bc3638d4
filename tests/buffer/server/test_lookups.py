"""Queries return exactly what they ask for, and lists in `stats` have a limit."""

import pytest

from buffer.server import lookups
from buffer.storage.transaction import Txn
from buffer.wire.operations import QueryGroups
from r3l.errors import LimitExceeded
from r3l.records import SlotResult


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


def _numbers(desk, query, *asked):
    with desk.store.read() as txn:
        return [int(row.group_id[1:]) for row in query(txn, *asked)]


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
    assert _numbers(filled, lookups.query, QueryGroups(purpose, tag, state, limit)) == wanted


def test_the_history_of_a_task_lists_its_training_groups(filled):
    assert _numbers(filled, Txn.finished, "t0") == [5, 4]
    assert _numbers(filled, Txn.finished, "t") == []
    assert _numbers(filled, Txn.finished, "x0") == []  # evaluated, not trained


def test_more_than_a_reply_can_hold_is_refused_with_the_limit(filled, monkeypatch):
    with filled.store.read() as txn:
        rows = lookups.query(txn, QueryGroups("train", None, "trained", 2))
        size = sum(map(len, lookups.records(txn, rows)))
        monkeypatch.setattr(lookups, "REPLY_LIMIT", size)
        assert len(lookups.records(txn, rows)) == 2
        monkeypatch.setattr(lookups, "REPLY_LIMIT", size - 1)
        with pytest.raises(LimitExceeded, match=f"{size - 1} bytes.*fewer"):
            lookups.records(txn, rows)

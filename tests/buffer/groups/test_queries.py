"""Queries return exactly what they ask for, and lists in `stats` have a limit."""

from collections import Counter

import pytest

from buffer.groups import queries
from buffer.server import stats
from buffer.storage import counts
from buffer.wire.operations import GetHistory, QueryGroups, Wait
from r3l.errors import LimitExceeded
from r3l.records import SlotResult, Task


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
    desk.put(failed, SlotResult("base", 0, "failed", cause="env"))
    desk.lease(version=1)
    return desk


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
    assert _numbers(filled, queries.query, QueryGroups(purpose, tag, state, limit)) == wanted


def test_the_history_of_a_task_lists_its_training_groups(filled):
    assert _numbers(filled, queries.history, GetHistory("t0", 9, True)) == [5, 4]
    assert _numbers(filled, queries.history, GetHistory("t0", 1, True)) == [5]
    assert _numbers(filled, queries.history, GetHistory("t0", 9, False)) == [4, 5]
    assert _numbers(filled, queries.history, GetHistory("t", 9, True)) == []
    assert (
        _numbers(filled, queries.history, GetHistory("x0", 9, True)) == []
    )  # evaluated, not trained


def test_more_than_a_reply_can_hold_is_refused_with_the_limit(filled, monkeypatch):
    with filled.store.read() as txn:
        rows = queries.query(txn, QueryGroups("train", None, "trained", 2))
        size = sum(map(len, queries.records(txn, rows)))
        monkeypatch.setattr(queries, "REPLY_LIMIT", size)
        assert len(queries.records(txn, rows)) == 2
        monkeypatch.setattr(queries, "REPLY_LIMIT", size - 1)
        with pytest.raises(LimitExceeded, match=f"more than {size - 1} bytes; ask for fewer"):
            queries.records(txn, rows)


def test_losses_by_task_name_the_tasks_that_lost_most():
    drops = Counter({("env", "base", f"t{n}"): n for n in range(1, 100)})
    drops["stale", "group", "t1"] = 1000  # its attempts are counted by themselves
    shown = counts.drops_by_task(drops)
    assert list(shown) == [f"t{n}" for n in range(99, 99 - counts.TASKS_SHOWN, -1)]
    assert shown["t99"] == {"base/env": 99}


def test_figures_of_actors_are_kept_for_so_many_of_each_and_the_longest_unheard_go_first():
    metrics = stats.ActorMetrics()
    for number in range(stats.ACTORS_LIMIT):
        metrics.update(f"a{number}", {})
    metrics.update("a0", {f"figure{n}": float(n) for n in range(stats.METRICS_LIMIT + 9)})
    metrics.update("new", {})
    report = metrics.report()
    assert len(report) == stats.ACTORS_LIMIT and "a1" not in report
    assert len(report["a0"]) == stats.METRICS_LIMIT + 1 and "figure8" not in report["a0"]


def test_an_abandoned_evaluation_goes_to_an_actor_with_its_version_only(desk, tasks):
    desk.add([Task("e", "workshop", 0)], "eval", "step-3", min_version=3)
    abandoned = desk.lease("a", version=3).group_id
    desk.release([abandoned])
    assert isinstance(desk.lease("b", version=2), Wait)
    assert desk.lease("b", version=3).group_id == abandoned

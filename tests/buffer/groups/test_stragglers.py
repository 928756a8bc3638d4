"""Stragglers: a group with enough base attempts does not wait for the rest after its deadline."""

import pytest

from buffer.storage import counts
from buffer.storage.transaction import read_group
from r3l.records import GroupPlan

PLAN = GroupPlan(3, 1)


@pytest.fixture
def desk(make_desk, tasks):
    desk = make_desk(straggler_s=60.0, min_base=2, lease_s=100.0)
    desk.add(tasks(9))
    return desk


def _record(desk, group):
    with desk.store.read() as txn:
        return read_group(txn.group_bytes(txn.row(group)), txn.row(group))


def test_after_its_deadline_a_group_with_a_quorum_is_completed_and_says_without_whom(desk, done):
    group = desk.lease(plan=PLAN).group_id
    desk.put(group, [done("base", 0), done("base", 2)])
    desk.now += 59
    assert desk.draw(1) is None
    desk.now += 2
    desk.lease("b")  # any operation that applies deadlines
    record = _record(desk, group)
    assert record.state == "complete" and record.unresolved == []
    assert record.stragglers == [("base", 1), ("distilled", 0)]
    assert counts.slot_drops(desk.index.drops) == {"base/straggler": 1, "distilled/straggler": 1}
    assert desk.index.counts["quorums"] == 1
    assert desk.draw(1).groups == (group,)


def test_the_put_that_makes_the_quorum_after_the_deadline_completes_the_group(desk, done):
    group = desk.lease(plan=PLAN).group_id
    desk.put(group, done("base", 0))
    desk.now += 61
    desk.put(group, done("distilled", 0))
    assert desk.row(group).state == "filling"
    assert desk.put(group, done("base", 1)).complete
    assert _record(desk, group).stragglers == [("base", 2)]


def test_failed_attempts_and_retries_make_no_quorum(desk, done):
    group = desk.lease(plan=PLAN).group_id
    desk.put(group, [done("base", 0), done("distilled", 0)])
    desk.resolve(group, "base", 1, "env")
    desk.now += 61
    desk.lease("b")
    assert desk.row(group).state == "filling"


def test_a_straggler_that_arrives_later_changes_nothing(desk, done):
    group = desk.lease(plan=PLAN).group_id
    desk.put(group, [done("base", 0), done("base", 2)])
    desk.now += 61
    desk.lease("b")
    ack = desk.put(group, done("base", 1))
    assert (ack.new, ack.complete) == (0, True)
    assert desk.renew([group]) == (group,)
    assert _record(desk, group).stragglers == [("base", 1), ("distilled", 0)]


def test_the_deadline_counts_from_the_first_lease_and_outlives_a_restart(desk, done):
    group = desk.lease("a", plan=PLAN).group_id
    desk.put(group, [done("base", 0), done("base", 1)])
    desk.now += 50
    desk.release([group])
    desk.reopen()
    assert desk.lease("b", plan=PLAN).group_id == group
    desk.now += 11
    desk.lease("c")
    assert _record(desk, group).stragglers == [("base", 2), ("distilled", 0)]


def test_without_a_deadline_every_slot_is_waited_for(make_desk, tasks, done):
    desk = make_desk()
    desk.add(tasks(1))
    group = desk.lease(plan=PLAN).group_id
    desk.put(group, [done("base", 0), done("base", 1)])
    desk.now += 5
    desk.renew([group])
    desk.now += 5
    desk.lease("b")
    assert desk.row(group).state == "filling"

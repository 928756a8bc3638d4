"""A group is completed by its last result, or after a deadline without its stragglers."""

import pytest

from buffer.storage import counts
from buffer.storage.transaction import read_group
from buffer.tools.verify import verify
from r3l.errors import (
    Conflict,
)
from r3l.records import GroupPlan, SlotResult


def test_a_group_without_any_trajectory_is_expired_with_its_cause(desk, tasks):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(1, 1)).group_id
    desk.put(group, SlotResult("base", 0, "failed", cause="env"))
    desk.put(group, SlotResult("distilled", 0, "not_triggered"))
    assert desk.row(group).state == "expired"
    assert (
        counts.under(desk.index.counts, "drop/group") == {"no_trajectories": 1}
        and desk.index.in_flight == 0
    )


PLAN = GroupPlan(3, 1)


@pytest.fixture
def quorum(make_desk, tasks):
    """Completes a group with two base attempts after a minute."""
    desk = make_desk(straggler_s=60.0, min_base=2, lease_s=100.0)
    desk.add(tasks(9))
    return desk


def _record(quorum, group):
    with quorum.store.read() as txn:
        return read_group(txn.group_bytes(txn.row(group)), txn.row(group))


def test_a_group_with_a_quorum_is_completed_after_its_deadline_and_names_its_stragglers(
    quorum, done
):
    group = quorum.lease(plan=PLAN).group_id
    quorum.put(group, [done("base", 0), done("base", 2)])
    quorum.now += 59
    assert quorum.draw(1) is None
    quorum.now += 2
    quorum.lease("b")  # any operation that applies deadlines
    record = _record(quorum, group)
    assert record.state == "complete" and record.unresolved == []
    assert record.stragglers == [("base", 1), ("distilled", 0)]
    assert counts.slot_drops(quorum.index.counts) == {"base/straggler": 1, "distilled/straggler": 1}
    assert quorum.index.counts["quorums"] == 1
    assert quorum.draw(1).groups == (group,)


def test_the_put_that_makes_the_quorum_after_the_deadline_completes_the_group(quorum, done):
    group = quorum.lease(plan=PLAN).group_id
    quorum.put(group, done("base", 0))
    quorum.now += 61
    quorum.put(group, done("distilled", 0))
    assert quorum.row(group).state == "filling"
    assert quorum.put(group, done("base", 1)).complete
    assert _record(quorum, group).stragglers == [("base", 2)]


def test_failed_attempts_and_retries_do_not_count_for_the_quorum(quorum, done):
    group = quorum.lease(plan=PLAN).group_id
    quorum.put(group, [done("base", 0), done("distilled", 0)])
    quorum.resolve(group, "base", 1, "env")
    quorum.now += 61
    quorum.lease("b")
    assert quorum.row(group).state == "filling"


def test_a_straggler_after_completion_changes_nothing_and_is_told_so(quorum, done):
    group = quorum.lease(plan=PLAN).group_id
    quorum.put(group, [done("base", 0), done("base", 2)])
    quorum.now += 61
    quorum.lease("b")
    ack = quorum.put(group, done("base", 1))
    assert (ack.new, ack.complete, ack.late) == (0, True, 1)
    both = quorum.put(group, [done("base", 0), done("distilled", 0)])
    assert (both.new, both.late) == (0, 1)
    assert quorum.renew([group]) == (group,)
    assert _record(quorum, group).stragglers == [("base", 1), ("distilled", 0)]


def test_the_deadline_counts_from_the_first_lease_and_survives_a_restart(quorum, done):
    group = quorum.lease("a", plan=PLAN).group_id
    quorum.put(group, [done("base", 0), done("base", 1)])
    quorum.now += 50
    quorum.release([group])
    quorum.reopen()
    assert quorum.lease("b", plan=PLAN).group_id == group
    quorum.now += 11
    quorum.lease("c")
    assert _record(quorum, group).stragglers == [("base", 2), ("distilled", 0)]


def test_a_group_without_a_deadline_waits_for_every_slot(make_desk, tasks, done):
    desk = make_desk()
    desk.add(tasks(1))
    group = desk.lease(plan=PLAN).group_id
    desk.put(group, [done("base", 0), done("base", 1)])
    desk.now += 5
    desk.renew([group])
    desk.now += 5
    desk.lease("b")
    assert desk.row(group).state == "filling"


def test_a_failure_that_was_put_is_told_apart_from_a_straggler(make_desk, tasks, done):
    desk = make_desk(straggler_s=60.0, min_base=1, lease_s=100.0)
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, [done("base", 0), SlotResult("base", 1, "failed", cause="env")])
    desk.now += 61
    desk.lease("b")
    assert desk.put(group, done("base", 2)).new == 0
    with pytest.raises(Conflict):
        desk.put(group, done("base", 1))
    assert verify(desk.store) == []

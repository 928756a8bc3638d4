"""A group is completed by its last result."""

from buffer.storage import counts
from r3l.records import GroupPlan, SlotResult


def test_a_group_without_any_trajectory_is_expired_with_its_cause(desk, tasks):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    desk.put(group, SlotResult(0, "failed", cause="env"))
    desk.put(group, SlotResult(1, "skipped", cause="no_base", of=0))
    assert desk.row(group).state == "expired"
    assert (
        counts.under(desk.index.counts, "drop/group") == {"no_trajectories": 1}
        and desk.index.in_flight == 0
    )


PLAN = GroupPlan(4)


def test_a_group_waits_for_every_slot(make_desk, tasks, done):
    desk = make_desk()
    desk.add(tasks(1))
    group = desk.lease(plan=PLAN).group_id
    desk.put(group, [done(0), done(1)])
    desk.now += 5
    desk.renew([group])
    desk.now += 5
    desk.lease("b")
    assert desk.row(group).state == "filling"

"""Leases: who gets a group, for how long, and the reason that a waiting actor gets."""

import pytest

from buffer.groups import leases as acting
from buffer.storage import counts
from buffer.wire.operations import Lease, Wait
from r3l.errors import LeaseLost, LimitExceeded, RecordError, SickResult
from r3l.records import GroupPlan, SlotResult, Task


def test_an_expired_lease_goes_to_the_next_actor_with_the_accepted_results(desk, tasks, done):
    desk.add(tasks(9))
    group = desk.lease("a", plan=GroupPlan(2)).group_id
    desk.put(group, done(1))
    assert desk.lease("b").group_id != group
    desk.now += 10.5
    taken = desk.lease("c", plan=GroupPlan(7))
    assert taken.group_id == group and taken.plan == GroupPlan(2)
    assert [r.slot for r in taken.accepted] == [1]
    with pytest.raises(LeaseLost, match="to c"):
        desk.put(group, done(0), actor="a")
    assert desk.put(group, done(0), actor="c").complete
    assert desk.index.counts["leases_expired"] == 2


def test_a_late_actor_keeps_its_group_until_another_takes_it(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease().group_id
    desk.now += 100
    assert desk.renew([group]) == ()
    desk.now += 9
    assert desk.put(group, done()).complete


def test_a_renewal_names_the_groups_that_the_actor_lost(desk, tasks):
    desk.add(tasks(3))
    first, second = desk.lease("a").group_id, desk.lease("a").group_id
    desk.release([second], "a")
    desk.lease("b")
    assert desk.renew([first, second, "g9999999999"], "a") == (second, "g9999999999")


def test_a_released_group_is_leased_again_at_once_but_not_counted_as_expired(desk, tasks):
    desk.add(tasks(3))
    group = desk.lease("a").group_id
    assert desk.release([group], "b") == ()
    assert desk.release([group], "a") == (group,)
    assert desk.lease("b").group_id == group
    assert "leases_expired" not in desk.index.counts


def test_a_repeated_lease_request_gets_the_same_group(desk, tasks):
    desk.add(tasks(3))
    first = desk.lease(rid="same")
    assert desk.lease(rid="same").group_id == first.group_id
    desk.reopen()
    assert desk.lease(rid="same").group_id == first.group_id
    assert desk.index.in_flight == 1


def test_an_expired_lease_that_is_renewed_stays_with_its_actor(desk, tasks):
    desk.add(tasks(2))
    group = desk.lease("a").group_id
    desk.now += 11
    desk.do(acting.expire_overdue)
    assert desk.renew([group]) == ()
    assert desk.lease("b").group_id != group
    desk.now += 11
    assert desk.lease("c").group_id == group
    assert desk.renew([group]) == (group,)
    assert desk.index.counts["leases_expired"] == 3


def test_before_the_first_step_its_groups_come_first_and_alone(desk, tasks, done):
    desk.set_version(0)
    desk.add(tasks(9))
    desk.add(tasks(9, "e"), "eval", "step-0")
    leases = [desk.lease() for _ in range(4)]  # two groups make a step
    assert [lease.purpose for lease in leases] == ["train", "train", "eval", "eval"]
    desk.put(leases[1].group_id, done())
    assert [desk.lease().purpose for _ in range(2)] == ["train", "eval"]


def test_after_a_restart_of_the_buffer_the_first_step_still_comes_first(desk, tasks):
    desk.set_version(0)
    desk.add(tasks(9))
    assert [desk.lease().purpose for _ in range(2)] == ["train"] * 2
    desk.reopen()
    assert desk.lease().reason.startswith("the first step")


def test_groups_in_vain_before_the_first_step_do_not_starve_the_evaluation(make_desk, tasks, done):
    desk = make_desk(max_staleness=9)
    desk.set_version(0)
    desk.add(tasks(99))
    desk.add(tasks(12, "e"), "eval", "step-0")
    shares = []
    for _ in range(4):  # an engine plays six groups at a time
        leases = [desk.lease() for _ in range(6)]
        shares.append([lease.purpose for lease in leases].count("eval"))
        for lease in leases:
            failed = SlotResult(0, "failed", cause="env")
            desk.put(lease.group_id, done() if lease.purpose == "eval" else failed)
    assert shares == [4, 3, 3, 2]  # two groups make a step


def test_before_the_first_step_the_groups_of_a_killed_actor_keep_no_other_waiting(make_desk, tasks):
    desk = make_desk(lease_s=120.0)
    desk.set_version(0)
    desk.add(tasks(9))
    assert [desk.lease("killed").purpose for _ in range(2)] == ["train"] * 2
    assert isinstance(desk.lease("next"), Wait)
    desk.now += 11
    assert [desk.lease("next").purpose for _ in range(2)] == ["train"] * 2
    assert desk.lease("next").reason.startswith("the first step")


def test_without_a_learner_collection_goes_as_far_as_admission(make_desk, tasks):
    desk = make_desk(max_staleness=3)
    desk.add(tasks(9))
    assert [desk.lease().purpose for _ in range(8)] == ["train"] * 8  # two groups make a step
    assert desk.lease().reason.startswith("staleness")


@pytest.mark.parametrize("purpose", ["train", "eval"])
@pytest.mark.parametrize("actor", ["next", "killed"])
def test_an_actor_with_nothing_else_to_do_takes_a_silent_actors_group_over_after_a_quarter_lease(
    make_desk, tasks, purpose, actor
):
    desk = make_desk(lease_s=120.0, max_staleness=0)
    desk.set_version(0)
    desk.add(tasks(9 if purpose == "train" else 2), purpose, "" if purpose == "train" else "x")
    silent, alive = desk.lease("killed").group_id, desk.lease("alive").group_id
    desk.now += 29
    assert isinstance(desk.lease(actor), Wait)
    assert desk.renew([alive], "alive") == ()
    desk.now += 2
    assert desk.lease(actor).group_id == silent
    assert isinstance(desk.lease(actor), Wait)
    assert desk.index.counts["leases_expired"] == 1


def test_evaluation_and_training_take_turns_and_neither_waits_for_the_other(desk, tasks, done):
    desk.set_version(1)
    desk.add(tasks(9))
    desk.add(tasks(6, "e"), "eval", "step-0")
    leases = [desk.lease(version=1) for _ in range(6)]
    assert [lease.purpose for lease in leases] == ["eval", "train"] * 3
    for lease in leases:
        if lease.purpose == "eval":
            desk.put(lease.group_id, done())
    # three training groups are held: evaluations catch up, then training goes as far as admitted
    assert [desk.lease(version=1).purpose for _ in range(4)] == ["eval", "eval", "eval", "train"]
    assert isinstance(desk.lease(version=1), Wait)


def test_evaluation_goes_on_while_training_is_not_admitted(desk, tasks):
    desk.add(tasks(9))
    for _ in range(4):
        desk.lease()
    desk.add(tasks(6, "e"), "eval", "step-0")
    assert [desk.lease().purpose for _ in range(6)] == ["eval"] * 6


def test_an_expired_evaluation_lease_is_granted_again(desk, tasks):
    desk.add(tasks(1, "e"), "eval", "x")
    first = desk.lease("a")
    assert isinstance(desk.lease("b"), Wait)
    desk.now += 11
    assert desk.lease("b").group_id == first.group_id


def test_a_waiting_actor_is_told_what_it_waits_for(desk, tasks):
    desk.set_version(0)
    assert "tasks" in desk.lease().reason
    desk.add(tasks(1, "e"), "eval", "x", min_version=3)
    assert "needs version 3" in desk.lease().reason
    desk.add(tasks(5))
    assert all(isinstance(desk.lease(), Lease) for _ in range(2))
    assert desk.lease().reason.startswith("the first step")
    desk.set_version(1)
    assert all(isinstance(desk.lease(version=1), Lease) for _ in range(2))
    told = desk.lease(version=1).reason
    assert told.startswith("staleness: 4 groups") and "learner at version 1" in told
    desk.set_version(5)
    assert "actor at version 0, learner at version 5" in desk.lease().reason


def test_abandoned_groups_that_are_too_old_make_room(make_desk, tasks, done):
    desk = make_desk(max_staleness=0)
    desk.add(tasks(9))
    half = [desk.lease(plan=GroupPlan(2)).group_id for _ in range(2)]
    for group in half:
        desk.put(group, done(0))
    desk.set_version(1)
    assert isinstance(desk.lease("b", version=1), Wait)
    desk.now += 11
    fresh = desk.lease("b", version=1)
    assert fresh.group_id not in half
    assert counts.under(desk.index.counts, "drop/group") == {"stale": 2}
    with pytest.raises(LeaseLost):
        desk.put(half[0], done(1))


def test_a_lease_for_an_impossible_plan_or_name_is_refused(desk, tasks):
    desk.add(tasks(2))
    for plan in (GroupPlan(0), GroupPlan(-1), GroupPlan(1025)):
        with pytest.raises(LimitExceeded, match=r"plan of .*: a group has 1 to 1024 slots"):
            desk.lease(plan=plan)
    group = desk.lease().group_id
    for name in ("", "a" * 201, "a\nactor-0 is dead", "a\x1b[2J", "a\u202e"):
        with pytest.raises(RecordError, match=r"actor .* 1 to 200 characters"):
            desk.lease(actor=name)
        with pytest.raises(RecordError, match=r"actor .* 1 to 200 characters"):
            desk.release([group], name)
    assert desk.index.in_flight == 1


@pytest.mark.parametrize(("version", "cause"), [(1, "version_future"), (-1, "version_negative")])
def test_an_engine_at_a_version_that_no_learner_made_is_given_no_group(desk, tasks, version, cause):
    desk.add(tasks(2))
    with pytest.raises(SickResult) as refused:
        desk.lease(version=version)
    assert refused.value.cause == cause and desk.index.counts["leases"] == 0
    assert desk.lease(version=0).group_id


def test_an_abandoned_evaluation_goes_only_to_an_actor_with_its_version(desk, tasks):
    desk.add([Task("e", "workshop", 0)], "eval", "step-3", min_version=3)
    desk.set_version(3)
    abandoned = desk.lease("a", version=3).group_id
    desk.release([abandoned])
    assert isinstance(desk.lease("b", version=2), Wait)
    assert desk.lease("b", version=3).group_id == abandoned

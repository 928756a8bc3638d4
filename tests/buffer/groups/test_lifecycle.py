"""Life of a group: leased, filled by whoever holds it, drawn once, trained once."""

import shutil

import pytest

from buffer.groups import leases as acting
from buffer.storage import counts
from buffer.storage.transaction import read_group
from buffer.wire.operations import Lease, Wait
from r3l.errors import Conflict, LeaseLost, LimitExceeded, NotFound, RecordError, StoreError
from r3l.records import GroupPlan, SlotResult, Task


def test_a_group_is_complete_when_its_last_slot_is_resolved_and_never_before(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2, 1)).group_id
    assert not desk.put(group, done("base", 1)).complete
    assert not desk.put(group, SlotResult("distilled", 0, "not_triggered")).complete
    assert desk.draw(1) is None
    assert desk.put(group, done("base", 0)).complete
    assert desk.draw(1).groups == (group,)


def test_a_finished_group_is_one_record_and_its_parts_are_gone(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    desk.put(group, done("base", 0, reward=1.0), fingerprint=(0, "abc"))
    desk.put(group, SlotResult("base", 1, "failed", cause="engine"))
    with desk.store.read() as txn:
        assert txn.size("part") == 0
        record = read_group(txn.group_bytes(txn.row(group)), txn.row(group))
    assert record.state == "complete" and record.fingerprints == {0: "abc"}
    assert [r.status for r in record.results] == ["done", "failed"]
    assert set(record.times) == {"leased", "filling", "complete"}
    assert counts.slot_drops(desk.index.drops) == {"base/engine": 1}


def test_a_put_that_is_sent_again_changes_nothing_even_after_training(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    assert desk.put(group, done("base", 0)).new
    assert not desk.put(group, done("base", 0)).new
    desk.put(group, done("base", 1))
    desk.commit(desk.draw(1).draw_id, 1)
    again = desk.put(group, done("base", 1), actor="somebody else")
    assert (again.new, again.complete) == (False, True)
    assert desk.row(group).state == "trained"


def test_several_results_are_put_together_or_not_at_all(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    for bad in ([done("base", 0), done("base", 3)], [done("base", 0)] * 2):
        with pytest.raises(RecordError):
            desk.put(group, bad)
    assert desk.row(group).resolved == ()
    assert desk.put(group, done("base", 1)).new == 1
    ack = desk.put(group, [done("base", slot) for slot in (2, 1, 0)])
    assert (ack.new, ack.complete) == (2, True)
    with desk.store.read() as txn:
        record = read_group(txn.group_bytes(txn.row(group)), txn.row(group))
        assert txn.size("part") == 0
    assert [(r.role, r.slot) for r in record.results] == [("base", slot) for slot in range(3)]


def test_a_slot_with_nothing_to_show_is_resolved_as_failed_or_skipped(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2, 1)).group_id
    desk.put(group, done("base", 0))
    assert desk.resolve(group, "base", 1, "engine").new
    assert not desk.resolve(group, "base", 1, "engine").new
    with pytest.raises(LeaseLost):
        desk.resolve(group, "distilled", 0, actor="b")
    with pytest.raises(RecordError, match="not in the plan"):
        desk.resolve(group, "distilled", 1)
    with pytest.raises(LimitExceeded, match="cause"):
        desk.resolve(group, "distilled", 0, "x" * 81)
    assert desk.resolve(group, "distilled", 0).complete
    with desk.store.read() as txn:
        record = read_group(txn.group_bytes(txn.row(group)), txn.row(group))
    assert [(r.status, r.cause) for r in record.results] == [
        ("done", ""), ("failed", "engine"), ("not_triggered", "")
    ]  # fmt: skip


def test_what_is_lost_is_counted_by_cause_role_and_task_and_survives_a_restart(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2, 2)).group_id
    desk.put(group, [done("base", 0), done("distilled", 0), done("distilled", 1)])
    desk.resolve(group, "base", 1, "env")
    desk.set_version(5)
    assert desk.draw(1, version=5) is None  # too old by now
    for _ in range(2):
        lost = desk.index.drops
        assert counts.group_drops(lost) == {"stale": 1}
        assert counts.slot_drops(lost) == {"base/env": 1, "base/stale": 1, "distilled/stale": 2}
        assert counts.drops_by_task(lost) == {"t0": counts.slot_drops(lost)}
        desk.reopen()


def test_a_lease_that_ran_out_goes_to_the_next_asker_with_what_was_accepted(desk, tasks, done):
    desk.add(tasks(9))
    group = desk.lease("a", plan=GroupPlan(2)).group_id
    desk.put(group, done("base", 1))
    assert desk.lease("b").group_id != group
    desk.now += 10.5
    taken = desk.lease("c", plan=GroupPlan(7))
    assert taken.group_id == group and taken.plan == GroupPlan(2)
    assert [(r.role, r.slot) for r in taken.accepted] == [("base", 1)]
    with pytest.raises(LeaseLost, match="to c"):
        desk.put(group, done("base", 0), actor="a")
    assert desk.put(group, done("base", 0), actor="c").complete
    assert desk.index.counts["leases_expired"] == 2


def test_an_actor_that_was_late_keeps_its_group_until_somebody_takes_it(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease().group_id
    desk.now += 100
    assert desk.renew([group]) == ()
    desk.now += 9
    assert desk.put(group, done()).complete


def test_renewing_tells_an_actor_what_it_lost(desk, tasks):
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


def test_asking_for_a_lease_again_with_the_same_request_gives_the_same_group(desk, tasks):
    desk.add(tasks(3))
    first = desk.lease(rid="same")
    assert desk.lease(rid="same").group_id == first.group_id
    desk.reopen()
    assert desk.lease(rid="same").group_id == first.group_id
    assert desk.index.in_flight == 1


def test_the_longest_cause_of_the_longest_task_id_can_be_counted(desk, tasks):
    desk.add([Task("t" * 400, "workshop", 0)])
    group = desk.lease().group_id
    with pytest.raises(LimitExceeded, match="80 bytes"):
        desk.put(group, SlotResult("base", 0, "failed", cause="\N{SNOWMAN}" * 80))
    desk.put(group, SlotResult("base", 0, "failed", cause="c" * 80))
    assert desk.row(group).state == "expired"


def test_a_group_without_any_trajectory_is_expired_with_its_cause(desk, tasks):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(1, 1)).group_id
    desk.put(group, SlotResult("base", 0, "failed", cause="env"))
    desk.put(group, SlotResult("distilled", 0, "not_triggered"))
    assert desk.row(group).state == "expired"
    assert (
        counts.group_drops(desk.index.drops) == {"no_trajectories": 1} and desk.index.in_flight == 0
    )


def test_a_draw_is_exactly_as_many_groups_as_asked_for_or_none(desk, tasks):
    desk.add(tasks(5))
    groups = [desk.complete() for _ in range(3)]
    assert desk.draw(4) is None
    assert desk.draw(2).groups == tuple(groups[:2])
    assert desk.draw(2) is None


def test_no_drawn_group_is_older_than_the_limit_and_the_dropped_are_counted(desk, tasks):
    desk.add(tasks(5))
    old, edge = desk.complete(version=0), desk.complete(version=1)
    desk.set_version(1)  # a learner may draw before it has committed the step
    assert desk.draw(1, version=2).groups == (edge,)
    assert desk.row(old).cause == "stale"
    assert counts.group_drops(desk.index.drops) == {"stale": 1}


def test_a_draw_at_an_impossible_version_is_refused_and_drops_nothing(desk, tasks):
    desk.add(tasks(3))
    group = desk.complete()
    for version, error in ((-1, RecordError), (2, Conflict), (1 << 40, Conflict)):
        with pytest.raises(error, match=f"draw at version {version}: "):
            desk.draw(1, version=version)
    assert desk.row(group).state == "complete"
    desk.set_version(1)
    assert desk.draw(1, version=2) is None  # one step ahead of what was committed
    assert desk.row(group).cause == "stale"


def test_a_draw_that_can_never_be_filled_is_refused(desk):
    with pytest.raises(LimitExceeded, match="1 to 4"):
        desk.draw(5)
    with pytest.raises(LimitExceeded):
        desk.draw(0)


def test_a_learner_that_died_draws_the_same_groups_again(desk, tasks):
    desk.add(tasks(5))
    groups = tuple(desk.complete() for _ in range(2))
    first = desk.draw(2)
    desk.reopen()
    assert desk.draw(2) is None
    assert desk.release_draws("another") == 0
    assert desk.release_draws() == 2
    second = desk.draw(2)
    assert second.groups == groups and second.draw_id != first.draw_id
    with pytest.raises(Conflict, match="released"):
        desk.commit(first.draw_id, 1)
    assert desk.commit(second.draw_id, 1) == 2


def test_asking_for_a_draw_again_with_the_same_request_gives_the_same_batch(desk, tasks):
    desk.add(tasks(5))
    for _ in range(4):
        desk.complete()
    first = desk.draw(2, rid="same")
    desk.reopen()
    assert desk.draw(2, rid="same") == first


def test_a_commit_is_idempotent_and_contradictions_are_refused(desk, tasks):
    desk.add(tasks(9))
    for _ in range(4):
        desk.complete()
    first, second = desk.draw(2), desk.draw(2)
    desk.commit(first.draw_id, 1)
    desk.commit(first.draw_id, 1)
    with pytest.raises(Conflict, match="step 1"):
        desk.commit(first.draw_id, 2)
    with pytest.raises(Conflict, match="trained on draw 1"):
        desk.commit(second.draw_id, 1)
    with pytest.raises(NotFound):
        desk.commit(77, 3)
    desk.commit(second.draw_id, 2)
    assert desk.index.progress.version == 2 and desk.index.counts["group/train/trained"] == 4


def test_a_learner_resumed_from_an_older_checkpoint_trains_forgotten_steps_again(desk, tasks):
    desk.add(tasks(9))
    batches = []
    for step in (1, 2, 3):
        for _ in range(2):
            desk.complete(version=step - 1)
        draw = desk.draw(2, version=step - 1)
        batches.append(draw.groups)
        desk.commit(draw.draw_id, step)
    assert desk.set_version(1) == 4
    assert desk.index.progress.version == 1
    for step in (2, 3):
        draw = desk.draw(2, version=step - 1)
        assert draw.groups == batches[step - 1]
        desk.commit(draw.draw_id, step)
    with desk.store.read() as txn:
        trained = [g for step in (1, 2, 3) for g in txn.step(step).groups]
    assert sorted(trained) == sorted(set(trained)) and len(trained) == 6


def test_tasks_come_in_a_shuffled_order_that_differs_by_epoch_and_repeats_by_seed(make_desk, tasks):
    orders = []
    for seed in (3, 3, 4):
        desk = make_desk(groups_per_step=50, seed=seed)
        assert desk.add(tasks(10)) == 10
        assert desk.add(tasks(10)) == 0
        ids = [desk.lease().task.task_id for _ in range(20)]
        assert sorted(ids[:10]) == sorted(ids[10:]) == sorted(t.task_id for t in tasks(10))
        assert ids[:10] != ids[10:]
        orders.append(ids)
        desk.store.close()
        shutil.rmtree(desk.folder)
    assert orders[0] == orders[1] != orders[2]


def test_a_lease_that_ran_out_and_is_renewed_stays_with_its_actor(desk, tasks):
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


def test_tasks_that_come_during_an_epoch_join_the_next_one(make_desk, tasks):
    desk = make_desk(groups_per_step=50)
    desk.add(tasks(3))
    first = desk.lease().task.task_id
    desk.add(tasks(5))
    desk.reopen()
    leased = [desk.lease().task.task_id for _ in range(7)]
    assert sorted([first, *leased[:2]]) == ["t0", "t1", "t2"]
    assert sorted(leased[2:]) == ["t0", "t1", "t2", "t3", "t4"]


def test_the_task_cycle_goes_on_where_it_was_after_a_restart(make_desk, tasks):
    desk = make_desk(groups_per_step=50)
    desk.add(tasks(6))
    first = [desk.lease().task.task_id for _ in range(3)]
    desk.reopen()
    rest = [desk.lease().task.task_id for _ in range(3)]
    assert sorted(first + rest) == sorted(t.task_id for t in tasks(6))


def test_evaluation_and_training_take_turns_and_neither_waits_for_the_other(desk, tasks, done):
    desk.add(tasks(9))
    desk.add(tasks(6, "e"), "eval", "step-0")
    leases = [desk.lease() for _ in range(6)]
    assert [lease.purpose for lease in leases] == ["eval", "train"] * 3
    for lease in leases:
        if lease.purpose == "eval":
            desk.put(lease.group_id, done())
    # three training groups are held: evaluations catch up, then training goes as far as admitted
    assert [desk.lease().purpose for _ in range(4)] == ["eval", "eval", "eval", "train"]
    assert isinstance(desk.lease(), Wait)


def test_evaluation_goes_on_while_training_is_not_admitted(desk, tasks):
    desk.add(tasks(9))
    for _ in range(4):
        desk.lease()
    desk.add(tasks(6, "e"), "eval", "step-0")
    assert [desk.lease().purpose for _ in range(6)] == ["eval"] * 6


def test_evaluation_tasks_are_leased_once_each_and_never_drawn(desk, tasks, done):
    desk.add(tasks(3))
    desk.add(tasks(2, "e"), "eval", "step-0", min_version=1)
    desk.add(tasks(2, "e"), "eval", "step-0", min_version=1)
    assert desk.lease(version=0).purpose == "train"
    leases = [desk.lease("b", version=1, plan=GroupPlan(4, 4)) for _ in range(3)]
    assert [lease.purpose for lease in leases] == ["eval", "eval", "train"]
    assert leases[0].plan == GroupPlan(1)
    desk.put(leases[0].group_id, done(version=1), "b")
    desk.put(leases[1].group_id, SlotResult("base", 0, "failed", cause="env"), "b")
    assert desk.index.eval_done == {"step-0": 2}
    assert desk.draw(1, version=1) is None
    desk.reopen()
    assert desk.index.eval_done == {"step-0": 2}


def test_an_evaluation_lease_that_ran_out_is_given_again(desk, tasks):
    desk.add(tasks(1, "e"), "eval", "x")
    first = desk.lease("a")
    assert isinstance(desk.lease("b"), Wait)
    desk.now += 11
    assert desk.lease("b").group_id == first.group_id


def test_a_waiting_actor_is_told_who_waits_for_whom(desk, tasks):
    assert "tasks" in desk.lease().reason
    desk.add(tasks(1, "e"), "eval", "x", min_version=3)
    assert "needs version 3" in desk.lease().reason
    desk.add(tasks(5))
    for _ in range(4):
        assert isinstance(desk.lease(), Lease)
    assert desk.lease().reason.startswith("staleness: 4 groups in flight, learner at version 0")
    desk.set_version(5)
    assert "actor at version 0, learner at version 5" in desk.lease().reason


def test_abandoned_groups_that_grew_too_old_make_room(make_desk, tasks, done):
    desk = make_desk(max_staleness=0)
    desk.add(tasks(9))
    half = [desk.lease(plan=GroupPlan(2)).group_id for _ in range(2)]
    for group in half:
        desk.put(group, done("base", 0))
    desk.set_version(1)
    assert isinstance(desk.lease("b", version=1), Wait)
    desk.now += 11
    fresh = desk.lease("b", version=1)
    assert fresh.group_id not in half
    assert counts.group_drops(desk.index.drops) == {"stale": 2}
    with pytest.raises(LeaseLost):
        desk.put(half[0], done("base", 1))


def test_everything_in_memory_can_be_rebuilt_from_the_store(desk, tasks, done):
    desk.add(tasks(9))
    desk.add(tasks(2, "e"), "eval", "x")
    evaluation = desk.lease().group_id
    desk.put(evaluation, done())
    for _ in range(3):
        desk.complete()
    desk.draw(1)
    desk.lease(plan=GroupPlan(2))
    before = vars(desk.index)
    desk.reopen()
    for name, value in vars(desk.index).items():
        if name == "last_seen":  # consumers cannot reach a service that is down
            assert value == {}
            continue
        kept = before[name]
        if isinstance(value, dict):
            kept = {k: v for k, v in kept.items() if v}
            value = {k: v for k, v in value.items() if v}
        assert value == kept, name


def test_bad_requests_are_refused_and_leave_no_trace(desk, tasks, done):
    desk.add(tasks(2))
    group = desk.lease().group_id
    with pytest.raises(RecordError, match="not in the plan"):
        desk.put(group, done("base", 1))
    with pytest.raises(LeaseLost):
        desk.put(group, done("base", 0), actor="b")
    with pytest.raises(NotFound):
        desk.put("g0", done())
    with pytest.raises(StoreError, match="full"):
        desk.put(group, done(), full="its disk")
    with pytest.raises(LimitExceeded, match=r"reward 1e\+50"):
        desk.put(group, done(reward=1e50))
    for cause in ("c" * 81, "with a \0"):
        with pytest.raises(LimitExceeded, match="at most 80 bytes, none of them NUL"):
            desk.resolve(group, "base", 0, cause)
    for plan in (GroupPlan(0, 1), GroupPlan(1000, 25)):
        with pytest.raises(LimitExceeded, match="at most 1024 slots"):
            desk.lease(plan=plan)
    for name in ("", "a" * 201):
        with pytest.raises(RecordError, match=r"actor .* 1 to 200 characters"):
            desk.lease(actor=name)
        with pytest.raises(RecordError, match=r"actor .* 1 to 200 characters"):
            desk.release([group], name)
    for task, rule in (
        (Task("x" * 600, "workshop", 0), "600 bytes together; limit 400"),
        (Task("x\0y", "workshop", 0), "NUL"),
        (Task("x", "workshop", 0, {"text": "y" * (1 << 20)}), "bytes; limit 1048576"),
    ):
        with pytest.raises(LimitExceeded, match=rule):
            desk.add([Task("first", "workshop", 0), task])
    with pytest.raises(RecordError, match="take no tag"):
        desk.add(tasks(1), tag="x")
    with pytest.raises(RecordError):
        desk.set_version(-1)
    assert desk.row(group).resolved == () and desk.index.in_flight == 1
    with desk.store.read() as txn:
        assert txn.size("task") == 2


def test_two_engines_that_disagree_about_a_version_leave_evidence(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    for slot, digest in enumerate(["one", "two", "one"]):
        desk.put(group, done("base", slot), fingerprint=(4, digest))
    assert desk.row(group).fingerprints == {4: "one|two"}
    assert desk.index.counts["fingerprint_conflicts"] == 1

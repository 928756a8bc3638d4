"""Tasks: shuffled epochs for training, each evaluation task once."""

import shutil

import pytest

from buffer.groups import retention
from r3l.errors import LimitExceeded, RecordError
from r3l.records import GroupPlan, SlotResult, Task
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.fakes import finished


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


def test_tasks_added_during_an_epoch_join_the_next_one(make_desk, tasks):
    desk = make_desk(groups_per_step=50)
    desk.add(tasks(3))
    first = desk.lease().task.task_id
    desk.add(tasks(5))
    desk.reopen()
    leased = [desk.lease().task.task_id for _ in range(7)]
    assert sorted([first, *leased[:2]]) == ["t0", "t1", "t2"]
    assert sorted(leased[2:]) == ["t0", "t1", "t2", "t3", "t4"]


def test_the_task_cycle_continues_after_a_restart(make_desk, tasks):
    desk = make_desk(groups_per_step=50)
    desk.add(tasks(6))
    first = [desk.lease().task.task_id for _ in range(3)]
    desk.reopen()
    rest = [desk.lease().task.task_id for _ in range(3)]
    assert sorted(first + rest) == sorted(t.task_id for t in tasks(6))


def test_evaluation_tasks_are_leased_once_each_and_never_drawn(desk, tasks, done):
    desk.add(tasks(3))
    desk.add(tasks(2, "e"), "eval", "step-0", min_version=1)
    desk.add(tasks(2, "e"), "eval", "step-0", min_version=1)
    assert desk.lease(version=0).purpose == "train"
    desk.set_version(1)
    leases = [desk.lease("b", version=1, plan=GroupPlan(8)) for _ in range(3)]
    assert [lease.purpose for lease in leases] == ["eval", "eval", "train"]
    assert leases[0].plan == GroupPlan(1)
    desk.put(leases[0].group_id, done(version=1), "b")
    desk.put(leases[1].group_id, SlotResult(0, "failed", cause="env"), "b")
    assert desk.index.eval_done == {"step-0": 2}
    assert desk.draw(1, version=1) is None
    desk.reopen()
    assert desk.index.eval_done == {"step-0": 2}


def test_a_refused_task_leaves_no_trace_and_keeps_the_others_out(desk, tasks):
    desk.add(tasks(2))
    for tag, rule in (("x" * 30, "410 bytes together; limit 400"), ("x\0y", "NUL")):
        with pytest.raises(LimitExceeded, match=rule):
            pair = [Task("first", "workshop", 0), Task("x" * 380, "workshop", 0)]
            desk.add(pair, purpose="eval", tag=tag)
    with pytest.raises(RecordError, match=r"'x'.* evaluation"):
        desk.add(tasks(1), tag="x")
    with desk.store.read() as txn:
        assert txn.size("task") == 2


def _gated(desk, tasks, gain, *, restarts=False, evicts=False):
    """Which of 40 groups are leased without retries, after 16 whose retries gained `gain`, and
    which retention `evicts`."""
    desk.configure(groups_per_step=200, algorithm={"gate": "measured", "group_size": 4})
    desk.add(tasks(200))
    for _ in range(16):
        lease = desk.lease(plan=None)
        assert lease.plan == GroupPlan(4)  # not enough is known
        desk.put(
            lease.group_id,
            [
                finished(0, reward=0.5),
                finished(1, reward=0.0),
                finished(3, of=1, reward=0.5 + gain),
                SlotResult(2, "skipped", cause="not_triggered", of=0),
            ],
        )
    if evicts:
        desk.commit(desk.draw(16, 0).draw_id, 1)
        gone = desk.do(retention.evict, RetentionConfig(groups=0, grace_s=0.0))
        assert len(gone) == 16
    plain = []
    for _ in range(40):
        if restarts:
            desk.reopen()
        plan = desk.lease(plan=None).plan
        plain.append({GroupPlan(4): False, GroupPlan(4, "plain"): True}[plan])
    return plain


def test_a_measured_gate_leaves_out_retries_that_do_not_help_and_remembers_their_gain(
    make_desk, tasks
):
    found = []
    for gain, how in ((-0.25, {}), (-0.25, {"restarts": True}), (-0.25, {"evicts": True}),
                      (0.25, {})):  # fmt: skip
        desk = make_desk()
        found.append(_gated(desk, tasks, gain, **how))
        desk.store.close()
        shutil.rmtree(desk.folder)
    harmful, again, evicted, helpful = found
    assert harmful == again == evicted and 29 <= sum(harmful) <= 39  # of 40, 7 in 8
    assert not any(helpful)

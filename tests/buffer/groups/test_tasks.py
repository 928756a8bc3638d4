"""Tasks: shuffled epochs for training, each evaluation task once."""

import shutil

import pytest
from msgspec.structs import replace

from buffer.groups import retention
from buffer.sampling import algorithm_calls
from buffer.tools.verify import verify
from buffer.wire import operations
from r3l import codec
from r3l.errors import LimitExceeded, RecordError
from r3l.records import AttemptKey, GroupPlan, SlotResult, Task
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


INSIDE = {"name": "restart_from_success", "group_size": 2, "share": 1.0}


def _visited(make_desk, tasks, *restarts):
    """A desk of one task that was won once. Its restarts ended so."""
    desk = make_desk(algorithm=INSIDE, groups_per_step=1, max_staleness=99)
    desk.add(tasks(1))
    desk.complete(rewards=(0.0, 1.0))
    desk.commit(desk.draw(1, 0).draw_id, 1)
    for step, rewards in enumerate(restarts, 1):
        lease = desk.lease(version=step, plan=None)
        made = [finished(slot, reward=r, version=step) for slot, r in enumerate(rewards)]
        desk.put(lease.group_id, made)
        desk.commit(desk.draw(1, step).draw_id, step + 1)
    return desk


def test_a_curriculum_goes_on_from_the_stored_groups_also_in_a_restarted_service(make_desk, tasks):
    desk = _visited(make_desk, tasks, (1.0, 0.0), (1.0, 1.0))
    desk.reopen()
    lease = desk.lease(version=3, plan=None)
    assert lease.plan.kind == "restart 3" and len(lease.handed) == 1
    assert lease.handed[0].trajectory.reward == 1.0
    assert verify(desk.store) == []


def test_starts_in_a_world_that_has_changed_are_counted_and_their_group_is_no_sample(
    make_desk, tasks
):
    desk = _visited(make_desk, tasks)
    lease = desk.lease(version=1, plan=None)
    assert lease.plan.kind == "restart 1"
    desk.put(lease.group_id, [SlotResult(n, "failed", cause="replay_diverged") for n in range(2)])
    row = desk.row(lease.group_id)
    assert (row.state, row.cause) == ("expired", "no_trajectories")
    assert row.failures == ("base/replay_diverged",) * 2
    counts = desk.index.counts
    assert {n: c for n, c in counts.items() if "diverged" in n} == {
        "drop/base/replay_diverged": 2
    } and desk.draw(1, 1) is None
    assert desk.lease(version=1, plan=None).plan.kind == "restart 1"  # it tells nothing


# ── plans of the algorithm ──────────────────────────────────────────────────────────────────


def test_a_plan_given_by_a_client_is_used_as_it_is_and_else_the_algorithm_plans(make_desk, tasks):
    desk = make_desk(algorithm={"name": "grpo", "group_size": 6}, groups_per_step=9)
    desk.add(tasks(9))
    assert desk.lease(plan=None).plan == GroupPlan(6)
    given = GroupPlan(3, "mine", (AttemptKey("g0000000099", 1),))
    lease = desk.lease(plan=given)
    assert (lease.plan, lease.handed) == (given, ())  # there is no such attempt
    with pytest.raises(LimitExceeded, match="65 stored attempts: at most 64"):
        desk.lease(plan=replace(given, handed=given.handed * 65))
    desk.configure(algorithm={"name": "r3l", "reflect": False})
    assert desk.lease(plan=None).plan == GroupPlan(8, "plain")


PLANS = """
import time
from r3l.algorithms.algorithm import Algorithm
from r3l.records import AttemptKey, GroupPlan

class Mine(Algorithm):
    does: str = "hand out"

    def plan(self, lease):
        stored = list(lease.history)
        if self.does == "hand out":
            best = sorted(stored, key=lambda one: -one.reward)[:2]
            keys = [AttemptKey(one.group_id, one.slot) for one in best]
            return GroupPlan(3, f"epoch {lease.epoch} at {lease.version}", tuple(keys))
        return eval(self.does)
"""


@pytest.fixture
def planned(make_desk, tasks, tmp_path):
    """Makes a desk of one task whose algorithm plans, with two trained groups."""
    (tmp_path / "mine.py").write_text(PLANS)

    def make(does="hand out", **more):
        algorithm = {"name": f"{tmp_path}/mine.py:Mine", "group_size": 4, "does": does}
        desk = make_desk(algorithm=algorithm, groups_per_step=2, max_staleness=9, **more)
        desk.add(tasks(1))
        for rewards in ((0.0, 1.0), (0.5, 0.25)):
            desk.complete(rewards=rewards)
        desk.commit(desk.draw(2).draw_id, 1)
        return desk

    return make


def test_the_attempts_that_a_plan_hands_out_come_with_the_lease_also_to_a_later_holder(planned):
    desk = planned()
    lease = desk.lease(version=1, plan=None)
    desk.put(lease.group_id, finished(1, version=1))
    desk.reopen()
    desk.now += 11
    taken = desk.lease("b", version=1, plan=None)
    for one in (lease, taken):
        assert one.group_id == lease.group_id and one.plan.kind == "epoch 2 at 1"
        handed = [(each.group_id, each.trajectory.slot, each.into) for each in one.handed]
        assert handed == [("g0000000001", 1, one.group_id), ("g0000000002", 0, one.group_id)]
        assert [each.trajectory.reward for each in one.handed] == [1.0, 0.5]
    desk.now += 1000
    desk.evict(RetentionConfig(groups=2, grace_s=0.0))
    last = desk.lease("c", version=1, plan=None)
    assert [one.group_id for one in last.handed] == ["g0000000002"]  # the other one is evicted
    assert verify(desk.store) == []


@pytest.mark.parametrize(
    "does",
    [
        "1 / 0",
        "None",
        "GroupPlan(0)",
        "GroupPlan(1025)",
        "GroupPlan('three')",
        "GroupPlan(2, 7)",
        "GroupPlan(2, handed=[('g0000000001', 1)])",
        "GroupPlan(2, handed=(AttemptKey('g0000000001', 7),))",  # no such slot
        "GroupPlan(2, handed=(AttemptKey('g0000000003', 0),))",  # the group itself
        "GroupPlan(2, handed=(AttemptKey('g0000000099', 0),))",
        "GroupPlan(2, handed=(AttemptKey('g0000000001', 1),) * 65)",
        "time.sleep(1)",
        "[None for _ in iter(int, 1)]",  # never ends
    ],
)
def test_a_plan_that_fails_is_counted_and_the_group_gets_the_usual_slots(
    planned, does, monkeypatch
):
    monkeypatch.setattr(algorithm_calls, "LIMIT_S", 0.2)
    said = []
    monkeypatch.setattr(algorithm_calls, "notice_again", lambda kind, line: said.append(line))
    desk = planned(does)
    lease = desk.lease(version=1, plan=None)
    assert (lease.plan, lease.handed) == (GroupPlan(4), ())
    assert desk.index.counts["algorithm_failed/plan"] == 1
    [line] = said
    assert "mine.py:Mine: plan failed" in line and line.endswith("algorithm.group_size slots")
    desk.put(lease.group_id, [finished(slot, version=1) for slot in range(4)])
    assert desk.row(lease.group_id).state == "complete" and verify(desk.store) == []


def test_handed_out_attempts_are_of_the_same_task_and_of_closed_groups(planned, tasks):
    desk = planned()
    desk.add([Task("other", "workshop", 0)])
    leases = [desk.lease(version=1, plan=None) for _ in range(2)]
    [other] = [lease for lease in leases if lease.task.task_id == "other"]
    assert other.handed == () and other.plan.handed == ()
    own = next(lease for lease in leases if lease is not other)
    desk.put(own.group_id, [finished(slot, version=1, reward=9.0) for slot in range(3)])
    third = desk.lease("b", version=1, plan=None)
    assert third.task.task_id == "t0"  # its complete group is no history before it is trained
    assert [one.trajectory.reward for one in third.handed] == [1.0, 0.5]


def test_attempts_that_are_too_large_to_be_handed_out_are_left_out(planned, monkeypatch):
    desk = planned()
    size = len(codec.encode(desk.lease(version=1, plan=None).handed[0]))
    monkeypatch.setattr(operations, "HANDED_BYTES", size)
    key = AttemptKey("g0000000001", 1)
    given = GroupPlan(2, "", (key, AttemptKey("g0000000001", 0)))
    assert [one.trajectory.slot for one in desk.lease(version=1, plan=given).handed] == [1]
    assert desk.lease(version=1, plan=None).plan == GroupPlan(4)  # the algorithm's is refused
    assert desk.index.counts["algorithm_failed/plan"] == 1


def test_a_restarted_service_makes_the_same_plan_and_evaluations_get_one_slot(planned):
    plans = []
    for restarts in (False, True):
        desk = planned("GroupPlan(int(lease.random().integers(2, 1000)))")
        desk.add([Task("e", "workshop", 0)], "eval", "step-1")
        if restarts:
            desk.reopen()
        leases = [desk.lease(version=1, plan=None) for _ in range(3)]
        plans.append({lease.group_id: lease.plan.slots for lease in leases})
        assert sorted(lease.purpose for lease in leases) == ["eval", "train", "train"]
        desk.store.close()
        shutil.rmtree(desk.folder)
    assert plans[0] == plans[1] and 1 in plans[0].values() and len(set(plans[0].values())) == 3

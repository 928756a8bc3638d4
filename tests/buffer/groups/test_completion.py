"""A group is completed by its last result."""

from collections import Counter

from buffer.server.stats import ActorReports, collect
from buffer.storage import counts
from buffer.tools.verify import verify
from r3l.algorithms.guidance_gain import GroupGain
from r3l.algorithms.published.dapo import DAPO
from r3l.records import GroupPlan, SlotResult
from tests.buffer.fakes import finished


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


REFUSES = """
from r3l.algorithms.algorithm import Algorithm

class Mine(Algorithm):
    def admits(self, group):
        if group.rewards[0] == 9.0:
            raise ValueError("never nine")
        if group.rewards[0] == 8.0:
            return 8
        return f"of_{len(group.of)}_{max(group.of)}" if max(group.rewards) < 0.5 else ""
"""


def test_a_group_that_a_users_algorithm_refuses_is_replaced_by_its_cause(
    make_desk, tasks, tmp_path
):
    (tmp_path / "mine.py").write_text(REFUSES)
    desk = make_desk(algorithm={"name": f"{tmp_path}/mine.py:Mine"}, groups_per_step=4)
    desk.add(tasks(9))
    lease = desk.lease(plan=GroupPlan(3))
    desk.put(lease.group_id, [finished(0), finished(2, of=0), SlotResult(1, "skipped")])
    good = [desk.complete(rewards=(reward, 0.0)) for reward in (1.0, 9.0, 8.0)]
    row = desk.row(lease.group_id)
    assert (row.state, row.cause, row.replaced) == ("expired", "of_2_0", True)
    assert counts.under(desk.index.counts, "replaced") == {"of_2_0": 1}
    assert "1 were replaced so far (of_2_0)" in desk.shortage(4)
    draw = desk.draw(3)
    assert (draw.groups, draw.replaced) == (tuple(good), (lease.group_id,))
    stats = desk.do(lambda work: collect(work, desk.store, ActorReports(), Counter()))
    assert (stats.algorithm_failed, stats.replaced) == ({"admits": 2}, {"of_2_0": 1})
    assert verify(desk.store) == []


def test_the_algorithm_is_asked_once_for_each_group_and_again_after_a_restart(
    make_desk, tasks, monkeypatch
):
    desk = make_desk(algorithm={"name": "dapo"})
    desk.add(tasks(9))
    asked, admits = [], DAPO.admits
    monkeypatch.setattr(DAPO, "admits", lambda *args: asked.append(1) or admits(*args))
    desk.complete(rewards=(0.0, 1.0))
    for _ in range(3):
        assert desk.draw(2) is None
    assert len(asked) == 1
    desk.reopen()
    for _ in range(3):
        assert desk.draw(2) is None
    assert len(asked) == 2 and len(desk.index.drawable.admitted) == 1
    desk.commit(desk.draw(1).draw_id, 1)
    assert desk.index.drawable.admitted == set()


def test_the_gain_of_guidance_counts_every_retry_of_an_attempt(desk, tasks):
    desk.add(tasks(9))
    group = desk.lease(plan=GroupPlan(5)).group_id
    bases = [finished(0, reward=0.0), finished(3, reward=0.5)]
    desk.put(group, [*bases, finished(1, of=0, reward=1.0), finished(4, of=0, reward=0.0)])
    assert desk.index.progress.gains == ()
    desk.put(group, SlotResult(2, "failed", cause="env", of=3))
    assert desk.index.progress.gains == (GroupGain((1.0 - 0.5) + (0.0 - 0.5), 2),)
    desk.complete(rewards=(0.0, 1.0))
    assert len(desk.index.progress.gains) == 1  # a group without retries has no gain
    desk.reopen()
    assert desk.index.progress.gains[0].slots == 2

"""Stores for the tools to read."""

import pytest

from r3l.records import GroupPlan, SlotResult, Task
from tests.buffer.fakes import thought


@pytest.fixture
def filled(desk, done):
    """A store with something in every table and every field that is easily lost."""
    odd = {"nested": [1, 2.5, None, {"a": True}], "text": 'ü\n"'}
    desk.add([Task("t0", "workshop", 1, odd), Task("t1", "workshop", -(1 << 40))])
    desk.add([Task("e0", "workshop", 0)], "eval", "step-0", min_version=9)
    for _ in range(2):
        desk.put(desk.lease().group_id, done(reward=0.1 + 0.2), fingerprint=(0, "abc"))
    desk.commit(desk.draw(2).draw_id, 1)
    failed = desk.lease(version=1).group_id
    desk.resolve(failed, 0, "env")
    half = desk.lease(version=1, plan=GroupPlan(3)).group_id
    skipped = SlotResult(2, "skipped", cause="not_triggered", of=0)
    desk.put(half, [done(version=1), skipped, thought(cause="not_json", seconds=0.25)])
    return desk


@pytest.fixture
def trained(desk, tasks, done):
    """A store with a trained step, a group without trajectories and an unfinished one."""
    desk.add(tasks(9))
    for _ in range(2):
        desk.put(desk.lease().group_id, done(reward=1.0))
    desk.commit(desk.draw(2).draw_id, 1)
    failed = desk.lease(version=1).group_id
    desk.put(failed, SlotResult(0, "failed", cause="env"))
    desk.put(desk.lease(version=1, plan=GroupPlan(2)).group_id, done(version=1))
    return desk

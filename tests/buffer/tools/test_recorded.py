"""What a store tells of its run's pace, against literal times."""

from pathlib import Path

import pytest

from buffer.storage.store import Store
from buffer.tools import recorded
from buffer.tools.recorded import bucket
from r3l.errors import UserError
from r3l.records import GroupPlan, Task
from tests.buffer.fakes import Desk, finished


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Six steps of two groups: each group 10 s, each step 3 s, 1 s until new weights play."""
    desk = Desk(tmp_path / "buffer", max_staleness=0, lease_s=1e6)
    desk.add([Task(f"t/{number}", "t", number) for number in range(4)])
    for version in range(6):
        leased = [desk.lease("a", version, GroupPlan(1)).group_id for _ in range(2)]
        desk.now += 10
        for group in leased:
            desk.put(group, finished(version=version, reward=float(version % 2)))
        draw = desk.draw(2, version)
        desk.now += 3
        desk.commit(draw.draw_id, version + 1)
        desk.now += 1
    desk.store.close()
    return desk


def test_durations_are_those_between_lease_completion_draw_and_commit(desk: Desk) -> None:
    store = Store(desk.folder, read_only=True)
    found = recorded.read(store)
    store.close()
    assert len(found.groups) == 12 and {one.seconds for one in found.groups} == {10.0}
    assert found.step_s == (3.0,) * 6 and (found.actors, found.places, found.per_step) == (1, 2, 2)
    assert found.load_s == 1.0 and found.between_s == 0.0 and len(found.tasks) == 4
    assert found.pace.step_s == 14.0 and found.pace.staleness == 0.0
    assert found.pace.learner_idle == pytest.approx(11 / 14)
    assert found.pace.actor_idle == pytest.approx(4 / 14)
    assert set(found.success) == {f"t/{number}" for number in range(4)}


def test_the_slowdown_and_the_seconds_alone_come_from_groups_with_and_without_company(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path / "buffer", max_staleness=0, lease_s=1e6)
    desk.add([Task(f"t/{number}", "t", number) for number in range(12)])
    for version in range(8):
        together = 1 + version % 2
        leased = [desk.lease("a", version, GroupPlan(1)).group_id for _ in range(together)]
        desk.now += 10 * (1 + 0.25 * (together - 1))
        for group in leased:
            desk.put(group, finished(version=version, reward=float(version % 2)))
        draw = desk.draw(together, version)
        desk.commit(draw.draw_id, version + 1)
        desk.now += 1
    desk.store.close()
    store = Store(desk.folder, read_only=True)
    found = recorded.read(store)
    store.close()
    assert found.slowdown == pytest.approx(0.25)
    assert [one.seconds for one in found.groups] == pytest.approx([10.0] * len(found.groups))


def test_a_store_with_too_little_is_one_line(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "buffer")
    desk.add([Task("t/0", "t", 0)])
    desk.complete()
    desk.store.close()
    store = Store(desk.folder, read_only=True)
    with pytest.raises(UserError, match=r"holds 1 groups with times and 0 steps; a rehearsal"):
        recorded.read(store)
    store.close()


def test_a_task_is_hard_medium_or_easy_by_its_recorded_success() -> None:
    assert [bucket(value) for value in (0.0, 0.3, 0.5, 0.7, 1.0)] == [
        "hard",
        "hard",
        "medium",
        "easy",
        "easy",
    ]

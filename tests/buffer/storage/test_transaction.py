"""A transaction: the tables, typed."""

import pytest

from buffer.storage.store import Store
from r3l import codec
from r3l.errors import NotFound, StoreError
from r3l.records import Group, GroupPlan, SlotResult, Task
from tests.buffer.fakes import thought


@pytest.fixture
def txn(tmp_path):
    """A write transaction on an empty store."""
    store = Store(tmp_path / "store", map_gib=0.01)
    with store.write() as txn:
        yield txn
    store.close()


def test_a_task_is_registered_once_by_its_id(txn):
    first, second = Task("t", "workshop", 1), Task("t", "workshop", 2)
    assert txn.add_task("train", "", 0, first) and not txn.add_task("train", "", 1, second)
    assert txn.add_task("eval", "x", 0, second)
    assert txn.task("train", "", 0) == first and txn.task("eval", "x", 0) == second
    with pytest.raises(StoreError, match="task 1 of train '' is missing"):
        txn.task("train", "", 1)


def test_a_count_of_zero_is_no_key(txn):
    txn.put_count("puts", 3)
    txn.put_count("draws", 1)
    txn.put_count("puts", 0)
    assert txn.counts() == {"draws": 1} and txn.size("count") == 1


def test_the_newest_group_is_found_even_if_it_was_evicted(desk, tasks, done):
    desk.add(tasks(2))
    with desk.store.read() as txn:
        assert txn.last_group() == ""
    group = desk.lease().group_id
    desk.put(group, SlotResult(0, "failed", cause="env"))
    with desk.store.write() as txn:
        txn.evict(txn.row(group))
        assert txn.last_group() == group and txn.evicted(group) and txn.row(group) is None
        with pytest.raises(NotFound, match=f"group {group} was evicted"):
            txn.existing_row(group)
        with pytest.raises(NotFound, match="no group 'g7'; "):
            txn.existing_row("g7")
        for table in ("group", "state", "history", "tag"):
            assert txn.size(table) == 0


def test_the_record_of_an_unfinished_group_has_what_was_accepted(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(12)).group_id
    for slot in (10, 2):
        desk.put(group, [done(slot), thought(f"t{slot}")])
    with desk.store.read() as txn:
        parts = txn.parts(group)
        assert (list(parts.results), list(parts.reflections)) == ([2, 10], ["t10", "t2"])
        found = codec.decode(Group, txn.group_bytes(txn.row(group)))
        assert [r.slot for r in found.results] == [2, 10]
        assert [r.name for r in found.reflections] == ["t10", "t2"]
        with pytest.raises(NotFound, match="has no record"):
            txn.record(group)


def test_a_draw_or_step_that_cannot_be_is_missing(txn):
    assert txn.draw(-1) is None and txn.draw(7) is None
    assert txn.step(-1) is None and txn.step(1 << 64) is None

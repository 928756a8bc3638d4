"""Looking into a store without its service, while it serves."""

import pytest

from buffer.sampling.samplers import SAMPLERS
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.verify import verify
from r3l.errors import NotFound
from r3l.records import GroupPlan
from tests.buffer.fakes import Desk, finished


def test_a_step_is_replayed_with_its_exact_groups(trained):
    assert [g.group_id for g in store_reads.replay(trained.store, 1)[0]] == [
        "g0000000001",
        "g0000000002",
    ]
    with pytest.raises(NotFound, match="step 2"):
        store_reads.replay(trained.store, 2)


def test_a_sound_store_verifies_clean_and_a_tampered_one_does_not(trained):
    assert verify(trained.store) == []
    with trained.store.write() as txn:
        txn.delete("ledger", (1).to_bytes(8, "big"))
        txn.put("group", b"g0000000003", b"junk")
    problems = "\n".join(verify(trained.store))
    assert "g0000000001: number of steps " in problems and ": -1)" in problems
    assert "g0000000003" in problems


def test_a_copy_is_read_without_a_service(trained, tmp_path):
    trained.store.copy(tmp_path / "snapshot")
    store = Store(str(tmp_path / "snapshot"), read_only=True)
    assert [row["group"] for row in store_reads.rows(store) if row["reward"] == 1.0] == [
        "g0000000001",
        "g0000000002",
    ]
    groups, gone = store_reads.replay(store, 1)
    assert [list(group.rewards) for group in groups] == [[1.0], [1.0]] and gone == []
    store.close()


def test_a_store_can_be_listed_while_it_is_served(serve, tasks, tmp_path):
    from buffer import BufferClient

    served = serve()
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(1))
        client.lease("a", 0, GroupPlan(1))
        store = Store(served.folder, read_only=True)
        assert [row["state"] for row in store_reads.rows(store)] == ["leased"]
        store.close()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_copy_gives_the_batches_of_its_store(make_desk, tasks, tmp_path, name):
    sampler = {"name": name, "reuse": 3, "beta": 0.5}
    desk = make_desk(groups_per_step=9, sampler=sampler, seed=7, max_staleness=9)
    desk.add(tasks(9))
    for reward in range(9):
        lease = desk.lease(plan=GroupPlan(2))
        desk.put(lease.group_id, [finished(0), finished(1, reward=float(reward))])
    desk.commit(desk.draw(4).draw_id, 1)
    desk.store.copy(tmp_path / "snapshot")
    copied = Desk(tmp_path / "snapshot", **desk.settings)
    copied.rids = desk.rids
    for step in (2, 3, 4):
        ours, theirs = desk.draw(4, step - 1), copied.draw(4, step - 1)
        assert ours == theirs and len(ours.groups) == 4
        desk.commit(ours.draw_id, step)
        copied.commit(theirs.draw_id, step)
    assert verify(copied.store) == []
    copied.store.close()

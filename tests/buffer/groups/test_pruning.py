"""What is kept about evicted groups does not grow for ever, and nothing else is lost."""

import pytest

from buffer.groups import pruning
from buffer.groups.retention import evict
from buffer.storage.stored_rows import ArchivePlace
from buffer.tools import store_reads
from buffer.tools.verify import verify
from r3l.errors import LeaseLost, NotFound
from r3l.run.settings.buffer import RetentionConfig


@pytest.fixture
def trained(make_desk, tasks, monkeypatch):
    """Six steps of one group each, and a draw that was given back."""
    monkeypatch.setattr(pruning, "KEPT_DRAWS", 2)
    desk = make_desk(groups_per_step=1, max_staleness=9)
    desk.add(tasks(20))
    for step in range(6):
        desk.complete(version=step)
        if step == 2:
            desk.draw(1, step)
            desk.release_draws()
        desk.commit(desk.draw(1, step).draw_id, step + 1)
    return desk


def sizes(desk):
    with desk.store.read() as txn:
        return {name: txn.size(name) for name in ("state", "tomb", "draw", "ledger")}


def _evict(desk, groups, grace_s=0.0):
    limits = RetentionConfig(groups=groups, grace_s=grace_s)
    return desk.do(lambda work: evict(work, limits))


def test_tombs_draws_and_steps_go_after_their_groups(trained, done):
    assert sizes(trained) == {"state": 6, "tomb": 0, "draw": 7, "ledger": 6}
    _evict(trained, 3)
    assert sizes(trained) == {"state": 3, "tomb": 0, "draw": 3, "ledger": 3}
    assert verify(trained.store) == []
    with trained.store.read() as txn:
        assert [txn.evicted(f"g{n:010d}") for n in range(8)] == [False, *[True] * 3, *[False] * 4]
        assert not txn.evicted("g00000000001") and not txn.evicted("g000000000x")
        with pytest.raises(NotFound, match="was evicted"):
            txn.existing_row("g0000000002")
        with pytest.raises(NotFound, match="it has steps 4 to 6, less those"):
            txn.existing_step(2)
    with pytest.raises(LeaseLost, match="was evicted"):
        trained.put("g0000000002", done())
    assert store_reads.replay(trained.store, 5)[1] == []


def test_ids_and_draw_numbers_go_on_after_everything_was_evicted(trained):
    _evict(trained, 0)
    assert sizes(trained) == {"state": 0, "tomb": 1, "draw": 2, "ledger": 2}
    assert verify(trained.store) == []
    trained.reopen()
    assert trained.complete(version=6) == "g0000000007"
    assert trained.draw(1, 6).draw_id == 8
    assert verify(trained.store) == []


def test_a_younger_draw_an_open_one_and_one_with_a_stored_group_are_kept(trained):
    trained.complete(version=6)
    trained.draw(1, 6)
    _evict(trained, 1, grace_s=0.0)
    trained.now += 10
    before = sizes(trained)
    trained.do(lambda work: pruning.prune(work, grace_s=1e9))
    assert sizes(trained) == before
    with trained.store.read() as txn:
        assert txn.draw(8).outcome == "open"
    assert verify(trained.store) == []


def test_draws_and_steps_of_archived_groups_are_kept(trained):
    place = ArchivePlace("a.parquet", 0, 0, "digest")
    for name in ("g0000000001", "g0000000002"):
        trained.do(lambda work, name=name: work.archive(work.row(name), place))
    before = sizes(trained)
    trained.do(lambda work: pruning.prune(work, 0.0))
    assert sizes(trained) == before
    _evict(trained, 5)
    with trained.store.read() as txn:
        assert txn.evicted("g0000000001") and not txn.evicted("g0000000002")
        assert txn.existing_step(2).groups == ("g0000000002",)
        with pytest.raises(NotFound, match="step 1 is not in the ledger"):
            txn.existing_step(1)


def test_few_entries_are_looked_at_in_one_transaction(trained, monkeypatch):
    monkeypatch.setattr(pruning, "AT_ONCE", 2)
    _evict(trained, 2)
    assert sizes(trained)["tomb"] == 2 and sizes(trained)["draw"] == 5
    for _ in range(3):
        trained.do(lambda work: pruning.prune(work, 0.0))
    assert sizes(trained) == {"state": 2, "tomb": 0, "draw": 2, "ledger": 2}
    with trained.store.read() as txn:
        assert txn.evicted("g0000000001")

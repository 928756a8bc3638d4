"""A unit of work: one transaction, and the index that follows it."""

import pytest

from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.counts import slot_drops, under
from r3l.errors import IllegalMove, NotFound
from r3l.records import GroupPlan


@pytest.fixture
def begin(desk):
    """Does something with a unit of work on the desk's store, and finishes it."""

    def run(change):
        with desk.store.write() as txn:
            work = UnitOfWork(txn, desk.index, desk.rules, desk.now)
            result = change(work)
            work.finish()
        return result

    return run


def stored(desk):
    with desk.store.read() as txn:
        return txn.counts(), txn.progress()


def test_counts_and_progress_are_written_when_the_work_is_finished(desk, begin):
    def change(work):
        work.count("leases", 3)
        work.count("leases")
        work.update_progress(version=5)
        assert stored(desk)[1].version != 5

    begin(change)
    counted, progress = stored(desk)
    assert counted["leases"] == desk.index.counts["leases"] == 4
    assert progress == desk.index.progress and progress.version == 5


def test_every_change_of_a_row_is_in_the_store_the_index_and_the_counts(desk, begin, tasks):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    renewed = begin(lambda work: work.save(work.row(group).with_changes(deadline=2000.0), "renew"))
    assert desk.row(group) == renewed == desk.index.live[group]
    assert desk.index.counts["group/train/leased"] == 1


def test_an_illegal_move_changes_nothing(desk, begin, tasks):
    desk.add(tasks(1))
    group = desk.lease().group_id
    before = desk.row(group)
    with pytest.raises(IllegalMove, match="leased to trained"):
        begin(lambda work: work.move(work.row(group), "trained", "commit"))
    assert desk.row(group) == before == desk.index.live[group]


def test_an_expired_group_counts_its_attempts_by_role_and_keeps_them_readable(
    desk, begin, tasks, done
):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, [done(0), done(2, of=0)])
    begin(lambda work: work.expire(work.row(group), "stale", "clock"))
    assert under(desk.index.counts, "drop/group") == {"stale": 1}
    assert slot_drops(desk.index.counts) == {"base/stale": 1, "distilled/stale": 1}
    assert desk.row(group).times["expired"] == desk.now
    with desk.store.read() as txn:
        assert txn.size("part") == 2 and txn.group_bytes(txn.row(group))


def test_a_group_that_never_was_is_not_found(begin):
    assert begin(lambda work: work.find("g0000000009")) is None
    with pytest.raises(NotFound):
        begin(lambda work: work.row("g0000000009"))

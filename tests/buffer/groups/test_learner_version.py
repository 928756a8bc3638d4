"""A learner that goes back to a checkpoint, gives batches up, or asks for fresher groups."""

import pytest

from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.counts import group_drops
from buffer.wire import operations
from r3l.errors import Conflict


@pytest.mark.parametrize("sampler", ["fifo", "uniform"])
def test_a_learner_that_goes_back_is_given_the_same_batches_again(make_desk, tasks, sampler):
    desk = make_desk(max_staleness=8, sampler=sampler)
    desk.add(tasks(40))
    for _ in range(12):
        desk.complete()
    first = []
    for step in (1, 2, 3):
        draw = desk.draw(2, version=step - 1)
        desk.commit(draw.draw_id, step)
        first.append(draw.groups)
    open_draw = desk.draw(2, version=3)
    desk.reopen()
    desk.set_version(1)
    desk.release_draws()
    desk.complete()
    again = []
    for step in (2, 3, 4):
        draw = desk.draw(2, version=step - 1)
        desk.commit(draw.draw_id, step)
        again.append(draw.groups)
    assert again == [first[1], first[2], open_draw.groups]


def test_a_batch_with_an_expired_group_is_replaced_by_another(desk, tasks):
    desk.add(tasks(8))
    groups = [desk.complete() for _ in range(4)]
    draw = desk.draw(2, version=0)
    desk.release_draws()
    with desk.store.write() as txn:
        work = UnitOfWork(txn, desk.index, desk.config, desk.now)
        work.expire(work.row(draw.groups[0]), "stale", "draw")
        work.finish()
    assert set(desk.draw(2, version=0).groups) < set(groups) - {draw.groups[0]}


def test_a_discarded_batch_is_dropped_with_its_cause_and_never_drawn_again(desk, tasks):
    desk.add(tasks(8))
    for _ in range(4):
        desk.complete()
    bad, good = desk.draw(2, version=0), desk.draw(2, version=0)
    assert desk.discard(bad.draw_id, "not_finite") == 2
    assert desk.discard(bad.draw_id, "not_finite") == 2
    with pytest.raises(Conflict, match="was discarded"):
        desk.commit(bad.draw_id, 1)
    desk.reopen()
    assert group_drops(desk.index.drops) == {"not_finite": 2}
    desk.commit(good.draw_id, 1)
    assert desk.set_version(0) == 2
    assert desk.draw(2, version=0).groups == good.groups


def test_a_lowered_staleness_limit_holds_for_leases_and_draws_and_survives_a_restart(
    make_desk, tasks
):
    desk = make_desk(max_staleness=4)
    desk.add(tasks(8))
    for _ in range(2):
        desk.complete(version=1)
    assert desk.limit_staleness(9) == 4 and desk.limit_staleness(1) == 1
    desk.reopen()
    assert desk.limit_staleness(3) == 1
    desk.set_version(3)
    assert isinstance(desk.lease(version=1), operations.Wait)
    assert desk.draw(2, version=3) is None
    assert group_drops(desk.index.drops) == {"stale": 2}

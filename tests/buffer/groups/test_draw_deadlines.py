"""Several consumers of one store never share a group, and a dead one keeps none."""

import time

import pytest

from buffer import BufferClient
from buffer.groups import leases
from buffer.tools.verify import verify
from buffer.wire.operations import Wait
from r3l.errors import Conflict, DrawExpired, LimitExceeded
from r3l.records import GroupPlan
from r3l.run.settings.buffer import RetentionConfig


@pytest.fixture
def make(make_desk, tasks):
    def desk(groups=4, **settings):
        desk = make_desk(**{"draw_s": 60.0} | settings)
        desk.add(tasks(9))
        for _ in range(groups):
            desk.complete()
        return desk

    return desk


def _ledger(desk):
    with desk.store.read() as txn:
        return {line.step: line.groups for line in txn.steps_after(-1)}


def test_two_consumers_never_share_a_group(make):
    desk = make()
    ours, theirs = desk.draw(2), desk.draw(2, consumer="notebook")
    assert not set(ours.groups) & set(theirs.groups)
    assert desk.draw(1) is None and desk.draw(1, consumer="notebook") is None
    assert desk.release_draws("notebook") == 2
    assert desk.row(ours.groups[0]).state == "drawn"
    assert desk.draw(2).groups == theirs.groups


def test_the_draws_of_a_silent_consumer_are_released_once_at_their_deadline(make):
    desk = make()
    theirs, ours = desk.draw(2, consumer="notebook"), desk.draw(2)
    desk.do(leases.expire_overdue)
    desk.now += 59
    desk.commit(ours.draw_id, 1)
    assert desk.draw(2) is None
    desk.now += 2
    again = desk.draw(2)
    assert again.groups == theirs.groups
    desk.now += 40
    desk.commit(again.draw_id, 2)
    desk.now += 500
    desk.do(leases.expire_overdue)
    assert desk.index.counts["draws_expired"] == 1
    assert _ledger(desk) == {1: ours.groups, 2: theirs.groups}
    assert verify(desk.store) == []


@pytest.mark.parametrize("speak", ["draw", "commit", "discard"])
def test_any_request_of_a_consumer_renews_all_its_draws(make, speak):
    desk = make(max_staleness=2)
    kept, other = desk.draw(2), desk.draw(2)
    desk.now += 50
    if speak == "draw":
        assert desk.draw(1) is None
    elif speak == "commit":
        desk.commit(other.draw_id, 1)
    else:
        desk.discard(other.draw_id, "not_finite")
    desk.now += 50
    desk.do(leases.expire_overdue)
    assert desk.row(kept.groups[0]).state == "drawn"


def test_without_a_deadline_draws_never_expire(make):
    desk = make(draw_s=0.0)
    drawn = desk.draw(2)
    desk.do(leases.expire_overdue)
    desk.now += 1e9
    desk.do(leases.expire_overdue)
    assert desk.row(drawn.groups[0]).state == "drawn"


def test_a_restarted_service_gives_consumers_the_whole_deadline(make):
    desk = make()
    drawn = desk.draw(2)
    desk.now += 1000
    desk.reopen()
    desk.do(leases.expire_overdue)
    desk.now += 59
    desk.do(leases.expire_overdue)
    assert desk.row(drawn.groups[0]).state == "drawn"
    desk.now += 2
    desk.do(leases.expire_overdue)
    assert desk.row(drawn.groups[0]).state == "complete"


def _expired(desk):
    drawn = desk.draw(2)
    desk.do(leases.expire_overdue)
    desk.now += 61
    desk.do(leases.expire_overdue)
    assert desk.index.draws == {}
    return drawn


def test_a_late_commit_counts_while_no_other_consumer_has_had_the_groups(make):
    desk = make()
    late = _expired(desk)
    assert desk.commit(late.draw_id, 1) == 2
    assert desk.commit(late.draw_id, 1) == 2
    with pytest.raises(Conflict, match="was trained in step 1"):
        desk.commit(late.draw_id, 2)
    assert desk.draw(2).groups != late.groups
    assert _ledger(desk) == {1: late.groups}
    assert desk.set_version(0) == 2 and desk.row(late.groups[0]).state == "complete"
    assert verify(desk.store) == []


def test_a_late_commit_is_refused_once_another_drew_one_of_the_groups(make):
    desk = make()
    late = _expired(desk)
    other = desk.draw(1, consumer="notebook")
    assert other.groups[0] in late.groups
    for trained in (False, True):
        if trained:
            desk.commit(other.draw_id, 1)
        with pytest.raises(DrawExpired, match=f"draw 1 of 'learner' expired.*{other.groups[0]}"):
            desk.commit(late.draw_id, 5)
    assert _ledger(desk) == {1: other.groups}


def test_a_late_commit_is_refused_once_the_groups_are_too_old(make):
    desk = make(groups=2)
    late = _expired(desk)
    desk.set_version(2)
    assert desk.draw(2, version=2, consumer="notebook") is None
    with pytest.raises(DrawExpired):
        desk.commit(late.draw_id, 1)


def test_a_late_discard_expires_only_groups_without_another_holder(make):
    desk = make(groups=2)
    late = _expired(desk)
    other = desk.draw(1, consumer="notebook")
    assert desk.discard(late.draw_id, "not_finite") == 1
    assert desk.row(other.groups[0]).state == "drawn"


def test_a_waiting_actor_is_told_who_holds_drawn_groups(make):
    desk = make()
    desk.draw(2)
    desk.draw(1, consumer="notebook")
    desk.now += 20
    while not isinstance(wait := desk.lease(), Wait):
        pass
    assert wait.reason.startswith("staleness: 4 groups in flight")
    assert "learner holds 2 " in wait.reason and "notebook holds 1 " in wait.reason
    assert wait.reason.count(" 20 s ago, ") == wait.reason.count(" after 60 s)") == 2


def test_groups_that_another_consumer_holds_keep_no_actor_from_working(make):
    desk = make(groups=2, max_staleness=0)
    assert isinstance(desk.lease(), Wait)
    desk.draw(2, consumer="notebook")
    for _ in range(2):
        desk.complete()
    assert isinstance(desk.lease(), Wait) and len(desk.draw(2).groups) == 2


def test_a_consumer_holds_at_most_what_may_be_in_flight(make):
    desk = make()
    held = desk.draw(3, consumer="notebook")
    for _ in range(2):
        desk.complete()
    with pytest.raises(LimitExceeded, match=r"'notebook' .*holds 3 groups"):
        desk.draw(2, consumer="notebook")
    assert len(desk.draw(2).groups) == 2
    desk.discard(held.draw_id, "unused")
    assert len(desk.draw(1, consumer="notebook").groups) == 1


def test_a_dead_consumer_stops_neither_actors_nor_the_learner(serve, tasks, done):
    served = serve(
        "tcp://127.0.0.1:0",
        "learner.groups_per_step=2",
        "buffer.max_staleness=0",
        "buffer.draw_s=4",
    )
    with BufferClient(served.endpoint) as learner:
        learner.add_tasks(tasks(9))
        for _ in range(2):
            learner.put(learner.lease("a", 0, GroupPlan(1)).group_id, "a", done())
        began = time.monotonic()
        with BufferClient(served.endpoint) as notebook:
            theirs = notebook.draw(2, 0, consumer="notebook")
        assert learner.stats().drawn_by == {"notebook": 2}
        ours = learner.draw(2, 0, wait_s=30.0)
        assert time.monotonic() - began > 1
        assert [g.group_id for g in ours.groups] == [g.group_id for g in theirs.groups]
        with pytest.raises(DrawExpired):
            learner.commit(theirs.draw_id, 1, 1)
        learner.commit(ours.draw_id, 1, 1)
        stats = learner.stats()
        assert stats.draws_expired == 1 and stats.drawn_by == {}


def test_a_late_commit_of_evicted_groups_is_refused(make):
    desk = make(groups=2)
    theirs = desk.draw(2, consumer="notebook")
    desk.do(leases.expire_overdue)
    desk.now += 61
    ours = desk.draw(2)
    desk.commit(ours.draw_id, 1)
    assert len(desk.evict(RetentionConfig(groups=0, grace_s=0.0))) == 2
    for late in (lambda: desk.commit(theirs.draw_id, 2), lambda: desk.commit(theirs.draw_id, 2)):
        with pytest.raises(DrawExpired, match="2 of its 2 groups"):
            late()
    assert desk.discard(theirs.draw_id, "not_finite") == 0
    assert verify(desk.store) == []


def test_a_commit_of_an_earlier_step_does_not_lower_the_version(make):
    desk = make()
    slow, quick = desk.draw(2, consumer="slow"), desk.draw(2, consumer="quick")
    desk.commit(quick.draw_id, 2)
    desk.commit(slow.draw_id, 1)
    assert desk.index.progress.version == 2
    assert _ledger(desk) == {1: slow.groups, 2: quick.groups}

"""Draws: exactly the groups asked for, committed once, released or discarded."""

import pytest

from buffer import BufferClient
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage import counts
from buffer.storage.counts import group_drops
from r3l.errors import Conflict, LimitExceeded, NotFound, RecordError
from r3l.records import GroupPlan


def test_a_draw_has_exactly_the_requested_number_of_groups_or_there_is_none(desk, tasks):
    desk.add(tasks(5))
    groups = [desk.complete() for _ in range(3)]
    assert desk.draw(4) is None
    assert desk.draw(2).groups == tuple(groups[:2])
    assert desk.draw(2) is None


def test_no_drawn_group_is_older_than_the_limit_and_expired_ones_are_counted(desk, tasks):
    desk.add(tasks(5))
    old, edge = desk.complete(version=0), desk.complete(version=1)
    desk.set_version(1)  # a learner may draw before it has committed the step
    assert desk.draw(1, version=2).groups == (edge,)
    assert desk.row(old).cause == "stale"
    assert counts.group_drops(desk.index.drops) == {"stale": 1}


def test_a_draw_at_an_impossible_version_is_refused_and_expires_nothing(desk, tasks):
    desk.add(tasks(3))
    group = desk.complete()
    for version, error in ((-1, RecordError), (2, Conflict), (1 << 40, Conflict)):
        with pytest.raises(error, match=f"draw at version {version}: "):
            desk.draw(1, version=version)
    assert desk.row(group).state == "complete"
    desk.set_version(1)
    assert desk.draw(1, version=2) is None  # one step ahead of what was committed
    assert desk.row(group).cause == "stale"


def test_a_draw_that_can_never_be_filled_is_refused(desk):
    with pytest.raises(LimitExceeded, match="1 to 4"):
        desk.draw(5)
    with pytest.raises(LimitExceeded):
        desk.draw(0)


def test_a_restarted_learner_draws_the_same_groups_again(desk, tasks):
    desk.add(tasks(5))
    groups = tuple(desk.complete() for _ in range(2))
    first = desk.draw(2)
    desk.reopen()
    assert desk.draw(2) is None
    assert desk.release_draws("another") == 0
    assert desk.release_draws() == 2
    second = desk.draw(2)
    assert second.groups == groups and second.draw_id != first.draw_id
    with pytest.raises(Conflict, match="released"):
        desk.commit(first.draw_id, 1)
    assert desk.commit(second.draw_id, 1) == 2


def test_a_repeated_draw_request_gets_the_same_batch(desk, tasks):
    desk.add(tasks(5))
    for _ in range(4):
        desk.complete()
    first = desk.draw(2, rid="same")
    desk.reopen()
    assert desk.draw(2, rid="same") == first


def test_a_commit_is_idempotent_and_contradictions_are_refused(desk, tasks):
    desk.add(tasks(9))
    for _ in range(4):
        desk.complete()
    first, second = desk.draw(2), desk.draw(2)
    desk.commit(first.draw_id, 1)
    desk.commit(first.draw_id, 1)
    with pytest.raises(Conflict, match="step 1"):
        desk.commit(first.draw_id, 2)
    with pytest.raises(Conflict, match="trained on draw 1"):
        desk.commit(second.draw_id, 1)
    with pytest.raises(NotFound):
        desk.commit(77, 3)
    desk.commit(second.draw_id, 2)
    assert desk.index.progress.version == 2 and desk.index.counts["group/train/trained"] == 4


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


def test_a_discarded_batch_expires_with_its_cause_and_is_never_drawn_again(desk, tasks):
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


@pytest.fixture
def short(make_desk, tasks):
    """A desk with three tasks, η 1 and a cooldown."""
    desk = make_desk(sampler={"reuse": 2, "cooldown": 3}, draw_s=60.0)
    assert "no training task is registered" in desk.shortage()
    desk.add(tasks(3))
    return desk


def test_a_draw_that_waits_for_actors_says_how_many_groups_they_hold(short):
    assert short.shortage() == "0 of 2 groups are there; waits for actors: none holds a group"
    short.complete()
    short.lease("a")
    short.lease("b")
    short.release(["g0000000003"], "b")
    said = "1 of 2 groups are there; waits for actors to finish 1; 1 unfinished have no actor"
    assert short.shortage() == said


def test_a_draw_that_finds_only_stale_resting_or_drawn_groups_says_so(short):
    for _ in range(4):
        short.complete()
    short.commit(short.draw(2).draw_id, 1)
    short.draw(1, consumer="notebook")
    said = short.shortage(version=2)
    assert "; 2 rest between two draws (cooldown 3)" not in said  # too old to be drawn again
    assert "notebook holds 1 drawn groups (last seen 0 s ago, expires after 60 s)" in said
    assert said.endswith("; 1 expired as stale so far (max_staleness 1)")


def test_a_draw_that_finds_only_resting_groups_says_so(short):
    for _ in range(2):
        short.complete()
    short.commit(short.draw(2).draw_id, 1)
    assert "; 2 rest between two draws (cooldown 3)" in short.shortage(version=1)


def test_a_client_is_told_why_a_draw_has_no_groups(serve, tasks):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=2")
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(3))
        client.lease("a", 0, GroupPlan(1))
        for wait_s in (0.0, 0.2):
            reasons = []
            assert client.draw(2, 0, wait_s=wait_s, explain=reasons.append) is None
            assert reasons == ["0 of 2 groups are there; waits for actors to finish 1"]

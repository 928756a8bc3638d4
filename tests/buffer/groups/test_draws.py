"""Draws: exactly the groups asked for, committed once, released or discarded."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from buffer import BufferClient
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage import counts
from buffer.storage.counts import under
from buffer.storage.stored_rows import TrainedAttempt
from buffer.tools.verify import verify
from buffer.wire.operations import Wait
from r3l.errors import Conflict, LimitExceeded, NotFound, RecordError, UserError
from r3l.records import GroupPlan
from tests.buffer.fakes import finished


def test_a_draw_has_exactly_the_requested_number_of_groups_or_there_is_none(desk, tasks):
    desk.add(tasks(5))
    groups = [desk.complete() for _ in range(3)]
    assert desk.draw(4) is None
    assert desk.draw(2).groups == tuple(groups[:2])
    assert desk.draw(2) is None


def test_no_drawn_group_is_older_than_the_limit_and_expired_ones_are_counted(desk, tasks):
    desk.add(tasks(5))
    desk.set_version(1)  # a learner may draw before it has committed the step
    old, edge = desk.complete(version=0), desk.complete(version=1)
    assert desk.draw(1, version=2).groups == (edge,)
    assert desk.row(old).cause == "stale"
    assert counts.under(desk.index.counts, "drop/group") == {"stale": 1}


def test_a_draw_at_an_impossible_version_is_refused_and_expires_nothing(desk, tasks):
    desk.add(tasks(3))
    group = desk.complete()
    for version in (2, 1 << 40):
        with pytest.raises(Conflict, match=f"draw at version {version}: "):
            desk.draw(1, version=version)
    assert desk.row(group).state == "complete"
    desk.set_version(1)
    assert desk.draw(1, version=2) is None  # one step ahead of what was committed
    assert desk.row(group).cause == "stale"


def test_a_draw_that_can_never_be_filled_is_refused(desk):
    with pytest.raises(LimitExceeded, match=r"1 to 4 .*; draw no more, or start the service with"):
        desk.draw(5)
    with pytest.raises(LimitExceeded):
        desk.draw(0)


OWN = """
from buffer.sampling.samplers import Pick, Sampler
from buffer.sampling.task_samplers import TaskSampler
class Rows(Sampler):
    pick = lambda self, candidates, count, source: candidates[:count]
class Twice(Sampler):
    pick = lambda self, candidates, count, source: [Pick(candidates[0])] * count
class Few(Sampler):
    pick = lambda self, candidates, count, source: [Pick(candidates[0])]
class Last(TaskSampler):
    next = lambda self, view: view.size
"""


@pytest.mark.parametrize(
    "sampler, why", [("Rows", "which is not a Pick"), ("Twice", "2 picks"), ("Few", "2 picks")]
)
def test_a_sampler_of_the_users_own_that_picks_no_batch_is_named(
    desk, tasks, tmp_path, sampler, why
):
    (tmp_path / f"own_{sampler}.py").write_text(OWN)
    name = f"{tmp_path}/own_{sampler}.py:{sampler}"
    desk.configure(sampler={"name": name})
    desk.add(tasks(5))
    groups = [desk.complete() for _ in range(3)]
    with pytest.raises(UserError, match=f"buffer.sampler {name}: pick returned .*{why}"):
        desk.draw(2)
    assert [desk.row(group).state for group in groups] == ["complete"] * 3


def test_a_task_sampler_of_the_users_own_that_chooses_no_task_is_named(desk, tasks, tmp_path):
    (tmp_path / "own_tasks.py").write_text(OWN)
    desk.configure(task_sampler={"name": f"{tmp_path}/own_tasks.py:Last"})
    desk.add(tasks(5))
    with pytest.raises(UserError, match=r"5 is not .* 0 to 4"):
        desk.lease()


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


def test_the_ledger_has_how_a_step_trained_on_each_attempt_until_the_step_is_undone(desk, tasks):
    desk.add(tasks(5))
    group = desk.complete()
    draw = desk.draw(1)
    with pytest.raises(RecordError, match="has no group 'g9'"):
        desk.commit(draw.draw_id, 1, attempts=(TrainedAttempt("g9", group, 0, 1.0, 0, 0.5),))
    used = (TrainedAttempt(group, "g7", 0, 1.5, 2, 0.25),)
    desk.commit(draw.draw_id, 1, attempts=used)
    with desk.store.read() as txn:
        assert txn.step(1).attempts == used
    desk.set_version(0)
    with desk.store.read() as txn:
        assert txn.step(1) is None


def test_a_commit_is_idempotent_and_contradictions_are_refused(desk, tasks):
    desk.add(tasks(9))
    for _ in range(4):
        desk.complete()
    first, second = desk.draw(2), desk.draw(2)
    desk.commit(first.draw_id, 1)
    desk.commit(first.draw_id, 1)
    with pytest.raises(Conflict, match="step 1"):
        desk.commit(first.draw_id, 2)
    with pytest.raises(Conflict, match="already trained on draw 1"):
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
        work = UnitOfWork(txn, desk.index, desk.rules, desk.now)
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
    assert under(desk.index.counts, "drop/group") == {"not_finite": 2}
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
    ready, waits = short.shortage().split("; ")
    assert ready.startswith("0 of 2 groups") and waits.endswith(" no group")
    short.complete()
    short.lease("a")
    short.lease("b")
    short.release(["g0000000003"], "b")
    ready, waits, unheld = short.shortage().split("; ")
    assert ready.startswith("1 of 2 groups") and waits.endswith(" finish 1")
    assert unheld.startswith("1 unfinished")


def test_a_draw_that_finds_only_stale_resting_or_drawn_groups_says_so(short):
    for _ in range(4):
        short.complete()
    short.commit(short.draw(2).draw_id, 1)
    short.draw(1, consumer="notebook")
    said = short.shortage(version=2)
    assert "cooldown" not in said  # too old to be drawn again
    assert "; notebook holds 1 " in said and "after 60 s)" in said
    assert "; 1 expired " in said and said.endswith("(max_staleness 1)")


def test_a_draw_that_finds_only_resting_groups_says_so(short):
    for _ in range(2):
        short.complete()
    short.commit(short.draw(2).draw_id, 1)
    said = short.shortage(version=1)
    assert "; 2 trained groups " in said and "(cooldown 3)" in said


def test_a_client_is_told_why_a_draw_has_no_groups(serve, tasks):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=2")
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(3))
        client.lease("a", 0, GroupPlan(1))
        for wait_s in (0.0, 0.2):
            reasons = []
            assert client.draw(2, 0, wait_s=wait_s, explain=reasons.append) is None
            (reason,) = reasons
            assert reason.startswith("0 of 2 groups") and reason.endswith(" finish 1")


# ── groups without contrast ─────────────────────────────────────────────────────────────────


def test_a_group_without_contrast_is_replaced_and_named_by_the_next_draw(make_desk, tasks):
    desk = make_desk(max_staleness=0, algorithm={"name": "dapo"})
    desk.add(tasks(9))
    flat = [desk.complete(rewards=(1.0, 1.0)) for _ in range(3)]
    flat.append(desk.lease(plan=GroupPlan(2)).group_id)
    desk.put(flat[-1], finished(reward=1.0))
    desk.resolve(flat[-1], 1, "env")
    good = [desk.complete(rewards=(0.0, 1.0)), desk.complete(rewards=(0.5, 0.25))]
    assert isinstance(desk.lease(), Wait)  # a batch is complete: only those two are in flight
    desk.reopen()
    draw = desk.draw(2)
    assert (draw.groups, draw.replaced) == (tuple(good), tuple(flat))
    assert {desk.row(group).cause for group in flat} == {"no_contrast"}
    assert under(desk.index.counts, "drop/group") == {"no_contrast": 4}
    desk.commit(draw.draw_id, 1)
    assert desk.draw(1, 1) is None
    last = desk.complete(1, rewards=(0.0, 1.0))
    assert (desk.draw(1, 1).groups, desk.draw(1, 1)) == ((last,), None)


def test_a_returned_batch_is_drawn_again_with_what_was_replaced_for_it(make_desk, tasks):
    desk = make_desk(algorithm={"name": "dapo"})
    desk.add(tasks(9))
    first = [desk.complete(rewards=rewards) for rewards in ((0.0, 0.0), (0.0, 1.0), (0.0, 1.0))]
    draw = desk.draw(2)
    later = desk.complete(rewards=(1.0, 1.0))
    assert desk.release_draws() == 2
    again = desk.draw(2)
    assert again.groups == draw.groups == (first[1], first[2])
    assert (draw.replaced, again.replaced) == ((first[0],), (first[0], later))
    desk.commit(again.draw_id, 1)
    assert desk.set_version(0) == 2
    assert desk.draw(2).groups == draw.groups
    assert verify(desk.store) == []


def test_only_training_groups_are_replaced_and_only_if_the_algorithm_asks_for_it(make_desk, tasks):
    desk = make_desk(algorithm={"name": "dapo", "filter": False})
    desk.add(tasks(9))
    groups = tuple(desk.complete(rewards=(0.0, 0.0)) for _ in range(2))
    draw = desk.draw(2)
    assert (draw.groups, draw.replaced) == (groups, ())
    desk.configure(algorithm={"name": "dapo"}, sampler={"reuse": 3})
    desk.reopen()
    desk.commit(draw.draw_id, 1)
    desk.add(tasks(1, "e"), "eval", "step-1")
    lease = desk.lease(version=1)
    assert lease.purpose == "eval"
    desk.put(lease.group_id, finished(version=1))
    assert desk.row(lease.group_id).state == "complete"
    assert desk.draw(2, 1) is None  # and a trained group without contrast is not drawn again


def test_groups_that_were_completed_under_other_settings_are_replaced_at_a_draw(make_desk, tasks):
    desk = make_desk()
    desk.add(tasks(9))
    flat, good = desk.complete(rewards=(0.0, 0.0)), desk.complete(rewards=(0.0, 1.0))
    desk.configure(algorithm={"name": "dapo"})
    draw = desk.draw(1)
    assert (draw.groups, draw.replaced, desk.row(flat).cause) == ((good,), (flat,), "no_contrast")


def test_a_draw_names_no_more_replaced_groups_than_fit_eight_batches(make_desk, tasks):
    desk = make_desk(algorithm={"name": "dapo"}, groups_per_step=1)
    desk.add(tasks(9))
    flat = [desk.complete() for _ in range(12)]
    desk.complete(rewards=(0.0, 1.0))
    assert desk.draw(1).replaced == tuple(flat[-8:])


def test_a_consumer_that_waits_for_contrast_hears_of_it_while_actors_go_on(serve, tasks):
    options = ("learner.groups_per_step=2", "buffer.max_staleness=0", "algorithm=dapo")
    served = serve("tcp://127.0.0.1:0", *options)
    with BufferClient(served.endpoint) as learner, BufferClient(served.endpoint) as actor:

        def play(reward):
            group = actor.lease("a", 0, GroupPlan(2)).group_id
            actor.put(group, "a", [finished(0), finished(1, reward=reward)])
            return group

        learner.add_tasks(tasks(9))
        said = []
        for reward, times in ((0.0, 20), (1.0, 1)):
            first = [play(reward) for _ in range(times)][-1]
            assert learner.draw(2, 0, wait_s=0.3, explain=said.append) is None
        assert [reason.partition(" groups")[0] for reason in said] == ["0 of 2", "1 of 2"]
        assert all("; 20 were replaced so far (no_contrast)" in reason for reason in said)
        with ThreadPoolExecutor() as thread:
            held = thread.submit(learner.draw, 2, 0, wait_s=30.0)
            last = [play(0.0), play(1.0)][-1]
            draw = held.result()
        assert [group.group_id for group in draw.groups] == [first, last]
        assert {group.cause for group in learner.get(draw.row.replaced)} == {"no_contrast"}

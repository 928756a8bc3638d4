"""What a draw recalls from the history of its tasks: written once, and the same ever after."""

import json
import shutil

import pytest

from buffer import BufferClient
from buffer.sampling import task_history
from buffer.tools import commands, store_reads
from buffer.tools.verify import verify
from r3l.errors import NotFound
from r3l.records import GroupPlan
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.fakes import finished

R3 = {"name": "r3", "group_size": 2}


@pytest.fixture
def make(make_desk, tasks):
    """A desk of one task, with these stored groups and one complete group of failures."""

    def desk(*stored, algorithm=R3, **more):
        desk = make_desk(groups_per_step=1, max_staleness=9, algorithm=algorithm, **more)
        desk.add(tasks(1))
        for step, rewards in enumerate(stored, 1):
            desk.complete(rewards=rewards)
            desk.commit(desk.draw(1, version=step - 1).draw_id, step)
        desk.complete(rewards=(0.0, 0.0))
        return desk

    return desk


def draw(desk):
    return desk.draw(1, version=desk.index.progress.version)


def test_a_group_of_failures_recalls_stored_successes_of_its_task(make):
    desk = make((0.0, 1.0))
    [one] = draw(desk).recalled
    assert (one.into, one.group_id, one.slot) == ("g0000000002", "g0000000001", 1)
    assert verify(desk.store) == []


def test_nothing_is_recalled_from_another_task_or_an_unfinished_or_discarded_group(make, tasks):
    desk = make((0.0, 0.0))
    desk.discard(draw(desk).draw_id, "not_finite")
    desk.add(tasks(1, "other"))
    made = [desk.complete(version=1, rewards=(1.0,)) for _ in range(2)]
    assert {desk.row(group).task_id for group in made} == {"t0", "other0"}
    desk.lease(version=1, plan=GroupPlan(2))
    with desk.store.read() as txn:
        assert [one.reward for one in task_history.attempts(txn, "t0")] == [0.0, 0.0]


def test_stale_groups_are_history_and_the_newest_groups_come_first(make):
    desk = make((1.0,), (0.5,), (0.0, 1.0))
    desk.set_version(99)
    assert desk.draw(1, version=99) is None and desk.row("g0000000004").cause == "stale"
    with desk.store.read() as txn:
        found = [(one.group_id[-1], one.reward) for one in task_history.attempts(txn, "t0")]
    assert found == [("4", 0.0), ("4", 0.0), ("3", 0.0), ("3", 1.0), ("2", 0.5), ("1", 1.0)]


def test_an_attempt_says_of_what_kind_its_group_is(make):
    desk = make((1.0,))
    lease = desk.lease(version=1, plan=GroupPlan(1, "guided 2"))
    desk.put(lease.group_id, finished(0, reward=0.5, version=1))
    desk.set_version(99)
    assert desk.draw(1, version=99) is None
    with desk.store.read() as txn:
        found = [(one.reward, one.kind) for one in task_history.attempts(txn, "t0")]
    assert found == [(0.5, "guided 2"), (0.0, ""), (0.0, ""), (1.0, "")]


def test_a_long_history_is_read_up_to_a_limit(make, monkeypatch):
    monkeypatch.setattr(task_history, "GROUPS", 2)
    desk = make((1.0,), (0.5,), (0.0,))
    with desk.store.read() as txn:
        assert [one.reward for one in task_history.attempts(txn, "t0")] == [0.0, 0.5]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_killed_and_resumed_learner_recalls_the_same_attempts(make, restarted):
    """More successes are stored between the two draws, and others would be chosen by now."""
    desk = make(*[(1.0, 1.0)] * 9)
    first = draw(desk)
    if restarted:
        desk.reopen()
    for _ in range(6):
        desk.complete(version=9, rewards=(1.0, 1.0))
    desk.release_draws()
    second = draw(desk)
    assert second.groups == first.groups and second.draw_id != first.draw_id
    assert second.recalled == first.recalled and len(first.recalled) == 1


def test_a_learner_that_goes_back_to_a_checkpoint_recalls_the_same_attempts(make):
    desk = make(*[(1.0, 1.0)] * 9)
    first = draw(desk)
    desk.commit(first.draw_id, 10)
    desk.complete(version=9, rewards=(1.0, 1.0))
    later = desk.draw(1, version=10)
    desk.commit(later.draw_id, 11)
    desk.set_version(9)
    again = desk.draw(1, version=9)
    assert (again.groups, again.recalled) == (first.groups, first.recalled)


@pytest.mark.parametrize("restarts", [1, 3])
def test_later_steps_recall_as_if_the_learner_had_never_been_killed(make, tmp_path, restarts):
    def later(restarts):
        desk = make(*[(1.0, 1.0)] * 9)
        for _ in range(restarts):
            draw(desk)
            desk.release_draws()
        desk.commit(draw(desk).draw_id, 10)
        desk.complete(version=10, rewards=(0.0, 0.0))
        recalled = draw(desk).recalled
        desk.store.close()
        shutil.rmtree(desk.folder)
        return recalled

    assert later(restarts) == later(0) != ()


def test_an_algorithm_without_a_rule_recalls_nothing(make):
    assert draw(make((1.0,), algorithm={"name": "grpo"})).recalled == ()


def test_the_same_seed_recalls_the_same_and_another_draw_another(make):
    desk = make(*[(1.0, 1.0)] * 9)
    chosen = {draw(desk).recalled}
    for _ in range(6):
        desk.discard(desk.index.next_draw - 1, "not_finite")
        desk.complete(version=9, rewards=(0.0, 0.0))
        chosen.add(tuple(draw(desk).recalled))
    assert len({(one.group_id, one.slot) for [one] in chosen}) > 2


def test_an_evicted_or_damaged_attempt_is_left_out_and_counted(make):
    desk = make((1.0,))
    drawn = draw(desk)
    desk.commit(drawn.draw_id, 2)
    again = store_reads.trained_draw(desk.store, 2)
    assert [one.trajectory.reward for one in again.recalled] == [1.0]
    desk.now += 1000
    desk.evict(RetentionConfig(groups=1, grace_s=0))
    with pytest.raises(NotFound, match=r"1 recalled .*evicted"):
        store_reads.trained_draw(desk.store, 2)


def test_recalled_attempts_reach_the_learner_and_the_replay_of_the_step(serve, tasks, done, capsys):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=1", "algorithm=r3")
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(1))
        for step, reward in ((1, 1.0), (2, 0.0)):
            group = client.lease("a", step - 1, GroupPlan(2)).group_id
            client.put(group, "a", [done(slot, reward=reward) for slot in (0, 1)])
            draw = client.draw(1, step - 1)
            client.commit(draw.draw_id, step, step)
    assert {one.trajectory.slot for one in draw.recalled} == {0, 1} and draw.recall_lost == 0
    assert [one.into for one in draw.recalled] == [draw.groups[0].group_id] * 2
    assert len(draw.groups) == 1 and len(draw.records) == 3
    commands.replay.callback(served.folder, 2)
    [line] = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(one["group_id"], one["slot"]) for one in line["recalled"]] == [
        ("g0000000001", 0),
        ("g0000000001", 1),
    ]
    with pytest.raises(NotFound):
        commands.replay.callback(served.folder, 3)


RECALLS = """
import dataclasses
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.facts import StoredAttempt

class Mine(Algorithm):
    does: str

    def recalls(self, group, history, random):
        attempts = [*history]
        assert [*history] == attempts  # it can be read again
        return eval(self.does) if attempts else ()
"""


@pytest.mark.parametrize(
    ("does", "found"),
    [
        ("attempts[1:]", [("g0000000001", 1)]),
        ("(one for one in attempts if one.reward == 1.0)", [("g0000000001", 0)]),
        ("[attempts[int(random().integers(1, 2))]]", [("g0000000001", 1)]),
        ("1 / 0", None),
        ("None", None),
        ("[('g0000000001', 0)]", None),
        ("[StoredAttempt('g0000000002', 0, 0.0, 0)]", None),  # of the group itself
        ("[StoredAttempt('g0000000099', 0, 0.0, 0)]", None),
        ("[dataclasses.replace(attempts[0], slot=9)]", None),
    ],
)
def test_a_users_rule_recalls_attempts_of_the_history_or_its_failure_is_counted(
    make, tmp_path, does, found
):
    (tmp_path / "mine.py").write_text(RECALLS)
    desk = make((1.0, 0.5), algorithm={"name": f"{tmp_path}/mine.py:Mine", "does": does})
    drawn = draw(desk)
    assert [(one.group_id, one.slot) for one in drawn.recalled] == (found or [])
    assert {one.into for one in drawn.recalled} <= {"g0000000002"}
    assert desk.index.counts["algorithm_failed/recalls"] == (found is None)
    assert verify(desk.store) == []

"""Groups that somebody inserts: drawn as replayed ones, never fresh, never stale, never played."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from buffer.groups import insertion
from buffer.sampling import task_history
from buffer.server import stats
from buffer.storage import counts
from buffer.storage.layout import INSERTED
from buffer.storage.result_checksums import read
from buffer.storage.store import Store
from buffer.storage.transaction import Txn
from buffer.tools import commands
from buffer.tools.attempt_frame import frame
from buffer.tools.finished_copy import copy_finished
from buffer.tools.verify import verify
from buffer.wire.messages import check_role
from buffer.wire.operations import OPERATIONS
from r3l import codec
from r3l.errors import Conflict, LimitExceeded, NotAllowed, RecordError, StoreError
from r3l.records import Group, SlotResult, Task
from r3l.records.imported import imported_attempt
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.fakes import calls, finished, thought

TASK = Task("outside", "elsewhere", 0, {"prompt": "what?"})


def attempts(*rewards, **more):
    rewards = rewards or (0.0, 1.0)
    return [imported_attempt([1, 2, 3], [(1, 3)], r, source="people", **more) for r in rewards]


@pytest.fixture
def make(make_desk, tasks):
    def desk(complete=2, **more):
        sampler = {"name": "uniform", "reuse": 3} | more.pop("sampler", {})
        desk = make_desk(max_staleness=3, sampler=sampler, **more)
        desk.add(tasks(9))
        for _ in range(complete):
            desk.complete()
        return desk

    return desk


def test_an_inserted_group_is_replay_material_from_its_first_moment_on(make):
    desk = make(sampler={"replay_share": 0.5})
    group = desk.insert(TASK, attempts())
    row = desk.row(group)
    assert (row.state, row.steps, row.source, row.is_fresh) == ("trained", (), "people", False)
    assert (row.oldest_version, row.tag, desk.index.in_flight) == (-1, INSERTED, 2)
    drawn = desk.draw(2)
    assert drawn.replayed == (group,) and group in drawn.groups
    assert verify(desk.store) == []


def test_inserted_groups_alone_make_no_batch_if_only_a_share_is_replayed(make):
    desk = make(complete=0, sampler={"replay_share": 0.5})
    desk.insert(TASK, attempts()), desk.insert(TASK, attempts())
    assert desk.draw(2) is None


def test_without_a_share_inserted_groups_compete_and_train_without_actors(make):
    desk = make(complete=0)
    groups = [desk.insert(TASK, attempts()) for _ in range(2)]
    for step in (1, 2, 3):
        drawn = desk.draw(2, version=step - 1)
        assert drawn.groups == drawn.replayed == tuple(groups)
        desk.commit(drawn.draw_id, step)
    assert desk.draw(2, version=3) is None  # reuse is 3
    assert desk.row(groups[0]).steps == (1, 2, 3) and verify(desk.store) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_it_is_never_stale_and_survives_a_restart(make, restarted):
    desk = make(complete=0)
    groups = [desk.insert(TASK, attempts()) for _ in range(2)]
    desk.set_version(500)
    if restarted:
        desk.reopen()
    drawn = desk.draw(2, version=500)
    assert drawn.groups == tuple(groups)
    desk.commit(drawn.draw_id, 501)
    desk.set_version(900)
    if restarted:
        desk.reopen()
    assert desk.draw(2, version=900).groups == tuple(groups)


def test_a_returned_draw_and_a_step_taken_back_put_it_where_it_was(make):
    desk = make(complete=0)
    groups = [desk.insert(TASK, attempts()) for _ in range(2)]
    desk.draw(2)
    assert desk.release_draws() == 2
    assert [desk.row(g).state for g in groups] == ["trained"] * 2 and verify(desk.store) == []
    desk.commit(desk.draw(2).draw_id, 1)
    assert desk.set_version(0) == 2
    assert [(desk.row(g).state, desk.row(g).steps) for g in groups] == [("trained", ())] * 2
    assert desk.draw(2).groups == tuple(groups) and verify(desk.store) == []


def test_an_expired_draw_gives_it_back_and_a_late_commit_counts(make):
    desk = make(complete=0, draw_s=5.0)
    groups = [desk.insert(TASK, attempts()) for _ in range(2)]
    drawn = desk.draw(2, consumer="notebook")
    desk.now += 4000
    desk.lease()
    assert [desk.row(g).state for g in groups] == ["trained"] * 2
    assert desk.commit(drawn.draw_id, 1) == 2
    assert desk.row(groups[0]).steps == (1,) and verify(desk.store) == []


def test_its_task_is_played_by_no_actor_and_its_rewards_teach_no_curriculum(make_desk):
    desk = make_desk(task_sampler={"name": "curriculum"})
    desk.insert(TASK, attempts())
    assert "no training task" in desk.shortage(2)
    assert "tasks: all are leased" in desk.lease().reason
    desk.add([TASK])
    desk.insert(TASK, attempts(1.0, 1.0))
    assert desk.lease().task == TASK
    with desk.store.read() as txn:
        found = list(txn.finished(TASK.task_id))
    assert len(found) == 2 and all(row.source for row in found)


def test_the_attempts_that_a_task_remembers_are_those_of_its_actors(make):
    desk = make(complete=1)
    with desk.store.read() as txn:
        [row] = [row for row in txn.rows() if row.state == "complete"]
        task = txn.task("train", "", row.task_index)
    inserted = desk.insert(task, attempts())
    with desk.store.read() as txn:
        known = task_history.attempts(txn, task.task_id, waiting=True)
        assert [attempt.group_id for attempt in known] == [row.group_id]
        assert not task_history.holds(txn, task.task_id, inserted, 0)


def test_statistics_tell_inserted_groups_from_trained_ones(make):
    desk = make(complete=0)
    desk.insert(TASK, attempts()), desk.insert(TASK, attempts())

    def collected():
        return desk.do(lambda w: stats.collect(w, desk.store, stats.ActorReports(), Counter()))

    assert (collected().inserted, collected().trained, collected().made) == (2, 0, 2)
    desk.commit(desk.draw(2).draw_id, 1)
    assert (collected().inserted, collected().trained) == (2, 2)
    third = desk.insert(TASK, attempts())
    desk.now += 1e6
    assert third in desk.evict(RetentionConfig(groups=0, grace_s=0.0))
    assert (collected().trained, collected().inserted) == (2, 3) and verify(desk.store) == []


def test_no_limit_of_versions_evicts_it_and_those_of_number_and_hours_do(make):
    desk = make(complete=0)
    inserted = desk.insert(TASK, attempts())
    trained = [desk.complete(), desk.complete()]
    drawn = desk.draw(3)
    desk.commit(drawn.draw_id, 1)
    desk.set_version(50)
    desk.now += 7200
    assert desk.evict(RetentionConfig(versions=5, grace_s=0.0)) == trained
    assert desk.evict(RetentionConfig(hours=1, grace_s=0.0)) == [inserted]


def test_slots_that_failed_retries_and_reflections_are_inserted_too(make):
    desk = make(complete=0)
    base, retry = finished(0), finished(1, of=0, reward=1.0, pivot=0, reflection="reflect-0")
    group = desk.insert(
        TASK, [base, retry, SlotResult(2, "failed", cause="env")], reflections=[thought()]
    )
    row = desk.row(group)
    assert row.attempts == [(0, -1, 0.0), (1, 0, 1.0)] and row.failures == ("base/env",)
    assert not counts.slot_drops(desk.index.counts)
    assert [name for name, _ in row.reflections] == ["reflect-0"] and verify(desk.store) == []


def own(version):
    return replace(
        attempts(0.0)[0],
        step_versions=np.array([version], np.int32),
        step_newest_versions=np.array([version], np.int32),
    )


def test_own_versions_stay_if_asked_and_none_may_come_from_the_future(make):
    desk = make(complete=0)
    desk.set_version(4)
    assert desk.row(desk.insert(TASK, [own(4)], own=True)).oldest_version == 4
    assert desk.row(desk.insert(TASK, [own(9)])).oldest_version == -1
    with pytest.raises(RecordError, match="version 5 does not exist; this run's are 0 to 4"):
        desk.insert(TASK, [own(5)], own=True)
    with pytest.raises(RecordError, match="version -2 does not exist"):
        desk.insert(TASK, [own(-2)], own=True)


def test_tokens_that_the_runs_model_does_not_know_are_refused(make):
    desk = make(complete=0)
    size = desk.rules.vocabulary
    last = imported_attempt([1, size - 1], [(1, 2)], 0.0, source="x")
    desk.insert(TASK, [last])
    for token in (size, -1):
        unknown = imported_attempt([1, token], [(1, 2)], 0.0, source="x")
        with pytest.raises(
            RecordError, match=rf"token {token}; the run's model knows 0 to {size - 1}"
        ):
            desk.insert(TASK, [unknown])
    desk.rules = dataclasses.replace(desk.rules, model="/nowhere")
    desk.insert(TASK, [imported_attempt([1, size], [(1, 2)], 0.0, source="x")])


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), 0.5])
def test_impossible_log_probabilities_are_refused(make, logprob):
    with pytest.raises(RecordError, match="those of sampling, or 0 for all if they are unknown"):
        make(complete=0).insert(TASK, attempts(0.0, logprobs=[-1.0, logprob]))


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"attempts": []}, "needs at least one attempt"),
        ({"attempts": [SlotResult(0, "failed", cause="env")]}, "needs at least one attempt"),
        ({"attempts": [finished(1)]}, r"has the slots \[1\]; number its 1 slots from 0 to 0"),
        ({"attempts": [finished(1), finished(1)]}, "two results for one slot"),
        ({"source": ""}, "source '': must have 1 to 200 characters"),
        ({"source": "a\nb"}, "source"),
    ],
)
def test_a_group_that_cannot_be_is_refused_in_one_line_and_leaves_no_trace(make, given, rule):
    desk = make()
    with pytest.raises(RecordError, match=rule):
        desk.insert(TASK, given.pop("attempts", [finished()]), **given)
    assert desk.index.counts["made"] == 2 and not desk.index.tasks["train", INSERTED]
    assert verify(desk.store) == []


@pytest.mark.parametrize(
    ("task", "given", "rule"),
    [
        ("q", attempts(), "task 'q': is not a task; give r3l.Task"),
        (TASK, attempts(1.0)[0], "a list of attempts is needed, not one Trajectory"),
        (TASK, [{"reward": 1.0}], "is not an attempt; make one with r3l.imported_attempt"),
    ],
)
def test_what_is_no_task_and_no_attempt_is_refused_before_it_is_sent(task, given, rule):
    with pytest.raises(RecordError, match=rule):
        calls.insert(task, given, source="x")


def test_failed_slots_are_numbered_with_the_others():
    failed = SlotResult(0, "failed", cause="env")
    request = calls.insert(TASK, [*attempts(), failed], source="x").arguments
    assert [codec.decode(SlotResult, each).slot for each in request.results] == [0, 1, 2]


def test_a_response_without_a_prompt_which_no_trainer_takes_is_refused(make):
    bare = imported_attempt([1, 2, 3], [(0, 3)], 1.0, source="x")
    with pytest.raises(RecordError, match="its first token is a response's, and nothing predicts"):
        make(complete=0).insert(TASK, [bare])


def test_a_task_that_exists_with_another_prompt_is_refused_whichever_came_first(make):
    desk = make()
    other = replace(TASK, options={"prompt": "which?"})
    desk.insert(TASK, attempts()), desk.insert(TASK, attempts())
    for refused in (lambda: desk.insert(other, attempts()), lambda: desk.add([other])):
        with pytest.raises(Conflict, match="task 'outside': exists with another"):
            refused()
    with pytest.raises(Conflict, match="task 't0': exists with another"):
        desk.insert(Task("t0", "workshop", 1), attempts())
    desk.insert(Task("t0", "workshop", 0), attempts())
    assert desk.index.tasks["train", INSERTED] == 2 and verify(desk.store) == []


def test_a_group_that_the_algorithm_refuses_is_refused_with_its_cause(make):
    desk = make(complete=0, algorithm={"name": "dapo", "group_size": 2})
    with pytest.raises(Conflict, match=r"algorithm refuses the group \(no_contrast\)") as refused:
        desk.insert(TASK, attempts(1.0, 1.0))
    assert refused.value.facts["cause"] == "no_contrast"
    desk.insert(TASK, attempts(0.0, 1.0))


def test_training_offline_takes_it_as_any_finished_group(make, tmp_path):
    desk = make()
    desk.insert(TASK, attempts(0.0, 1.0))
    desk.store.close()
    copy_finished([desk.folder], tmp_path / "copy", contrast=True, on_group=lambda group: None)
    with Store(tmp_path / "copy", read_only=True) as copy, copy.read() as txn:
        assert verify(copy) == []
        [row] = txn.rows()
        assert (row.state, row.is_fresh, row.tag, "complete" in row.times) == (
            "complete", True, "", True,
        )  # fmt: skip
        assert not any(t.has_logprobs for t in read(txn, row).trajectories)


def test_a_refused_group_does_not_admit_the_next_one(make):
    desk = make(complete=0, algorithm={"name": "dapo", "group_size": 2})
    with pytest.raises(Conflict, match="exists with another"):
        desk.insert(Task("t0", "workshop", 1), attempts(0.0, 1.0))
    assert desk.row(desk.complete(rewards=(1.0, 1.0))).cause == "no_contrast"


def test_a_full_store_and_a_group_that_is_too_large_are_refused(make, monkeypatch):
    desk = make(complete=0)
    request = calls.insert(TASK, attempts(), source="x").arguments
    with pytest.raises(StoreError, match="the store is full: no room; nothing was written"):
        desk.do(insertion.insert, request, full="no room")
    monkeypatch.setattr(insertion, "GROUP_LIMIT", 10)
    with pytest.raises(LimitExceeded, match="bytes; limit 10"):
        desk.do(insertion.insert, request)


def test_a_damaged_inserted_group_is_not_drawn(make, monkeypatch):
    desk = make()
    bad = desk.insert(TASK, attempts())

    sound = Txn.record_is_sound
    monkeypatch.setattr(
        Txn, "record_is_sound", lambda t, row: row.group_id != bad and sound(t, row)
    )
    drawn = desk.draw(2)
    assert bad not in drawn.groups


def test_a_service_inserts_and_gives_back_what_was_inserted(served, client):
    before = [finished(0, version=7), finished(1, version=7, reward=1.0)]
    group = client.insert(TASK, before, source="old run")
    [stored] = client.get([group])
    assert isinstance(stored, Group) and stored.task == TASK and stored.source == "old run"
    assert [t.token_ids.tolist() for t in stored.trajectories] == [list(range(8))] * 2
    assert client.stats().inserted == 1
    assert client.query(tag=INSERTED)[0].group_id == group


def test_only_a_learner_may_insert_and_a_repeated_request_inserts_once():
    with pytest.raises(NotAllowed):
        check_role(OPERATIONS["insert"], "client")
    assert OPERATIONS["insert"].keeps_reply


def test_tables_and_lists_show_where_it_comes_from_and_no_age(make, capsys):
    desk = make(complete=0)
    desk.insert(TASK, attempts()), desk.insert(TASK, attempts())
    desk.set_version(6)
    desk.commit(desk.draw(2, version=6).draw_id, 7)
    table = frame(desk.store)
    assert set(table["step"]) == {7} and table["staleness"].isna().all()
    desk.store.close()
    commands.ls.callback(desk.folder, "source == 'people' and uses == 1", 50)
    shown = capsys.readouterr().out
    assert shown.count("elsewhere/outside  inserted  from people\n") == 2
    commands.show.callback(desk.folder, "1")
    assert "imported from people" in capsys.readouterr().out

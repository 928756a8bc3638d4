"""Results: each slot is resolved once, and the last one or a deadline completes the group."""

import math
import threading

import pytest
from msgspec.structs import replace

from buffer import BufferClient
from buffer.groups import leases, results
from buffer.storage import counts
from buffer.storage.store import Store
from buffer.storage.transaction import read_group
from buffer.tools.verify import verify
from r3l import codec
from r3l.errors import (
    Conflict,
    LeaseLost,
    LimitExceeded,
    NotFound,
    RecordError,
    SickResult,
    StoreError,
)
from r3l.records import GroupPlan, SlotResult, Task
from r3l.text import LABEL_LIMIT
from tests.buffer.fakes import thought


def test_a_group_is_complete_when_its_last_slot_is_resolved_and_never_before(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    assert not desk.put(group, done(1)).complete
    assert not desk.put(group, SlotResult(2, "skipped", of=0)).complete
    assert desk.draw(1) is None
    assert desk.put(group, done(0)).complete
    assert desk.draw(1).groups == (group,)


def test_a_finished_group_is_one_record(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    desk.put(group, done(0, reward=1.0), fingerprint=(0, "abc"))
    desk.put(group, SlotResult(1, "failed", cause="engine"))
    with desk.store.read() as txn:
        record = read_group(txn.group_bytes(txn.row(group)), txn.row(group))
    assert record.state == "complete" and record.fingerprints == {0: "abc"}
    assert [r.status for r in record.results] == ["done", "failed"]
    assert set(record.times) == {"leased", "filling", "complete"}
    assert counts.slot_drops(desk.index.counts) == {"base/engine": 1}


def test_a_repeated_put_changes_nothing_even_after_training(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    assert desk.put(group, done(0)).new
    assert not desk.put(group, done(0)).new
    desk.put(group, done(1))
    desk.commit(desk.draw(1).draw_id, 1)
    again = desk.put(group, done(1), actor="somebody else")
    assert (again.new, again.complete) == (False, True)
    assert desk.row(group).state == "trained"


def test_several_results_are_put_together_or_not_at_all(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    for bad in ([done(0), done(3)], [done(0)] * 2):
        with pytest.raises(RecordError):
            desk.put(group, bad)
    assert desk.row(group).resolved_slots == ()
    assert desk.put(group, done(1)).new == 1
    ack = desk.put(group, [done(slot) for slot in (2, 1, 0)])
    assert (ack.new, ack.complete) == (2, True)
    with desk.store.read() as txn:
        record = read_group(txn.group_bytes(txn.row(group)), txn.row(group))
    assert [r.slot for r in record.results] == [0, 1, 2]


def test_a_slot_without_a_trajectory_is_resolved_as_failed_or_skipped(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, done(0))
    assert desk.resolve(group, 1, "engine").new
    assert not desk.resolve(group, 1, "engine").new
    with pytest.raises(LeaseLost):
        desk.resolve(group, 2, actor="b")
    with pytest.raises(RecordError, match="not in the plan"):
        desk.resolve(group, 3)
    with pytest.raises(RecordError, match="cause"):
        desk.resolve(group, 2, "x" * 81)
    assert desk.resolve(group, 2, of=0).complete
    with desk.store.read() as txn:
        record = read_group(txn.group_bytes(txn.row(group)), txn.row(group))
    assert [(r.status, r.cause) for r in record.results] == [
        ("done", ""), ("failed", "engine"), ("skipped", "")
    ]  # fmt: skip


def test_expired_attempts_are_counted_by_cause_role_and_task_over_a_restart(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(4)).group_id
    desk.put(group, [done(0), done(2, of=0), done(3, of=0)])
    desk.resolve(group, 1, "env")
    desk.set_version(5)
    assert desk.draw(1, version=5) is None  # too old by now
    for _ in range(2):
        lost = desk.index.counts
        assert counts.under(lost, "drop/group") == {"stale": 1}
        assert counts.slot_drops(lost) == {"base/env": 1, "base/stale": 1, "distilled/stale": 2}
        desk.reopen()


def test_the_longest_cause_of_the_longest_task_id_can_be_counted(desk, tasks):
    desk.add([Task("t" * 380, "workshop", 0)])
    group = desk.lease().group_id
    with pytest.raises(RecordError, match="80 bytes"):
        SlotResult(0, "failed", cause="\N{SNOWMAN}" * 80)
    desk.put(group, SlotResult(0, "failed", cause="c" * 80))
    assert desk.row(group).state == "expired"


def test_engines_with_different_weights_of_one_version_are_recorded(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    for slot, digest in enumerate(["one", "two", "one"]):
        desk.put(group, done(slot), fingerprint=(4, digest))
    assert desk.row(group).fingerprints == {4: "one|two"}
    assert desk.index.counts["fingerprint_conflicts"] == 1


def sick(cause, done):
    """A result with that symptom."""
    versions = {"version_negative": -1, "version_future": 6}
    result = done(1, version=versions.get(cause, 5))
    logprobs = result.trajectory.logprobs.copy()
    logprobs[-1] = {"logprobs_not_finite": math.nan, "logprobs_positive": 0.5}.get(cause, -1.0)
    return replace(result, trajectory=replace(result.trajectory, logprobs=logprobs))


@pytest.mark.parametrize(
    "cause", ["logprobs_not_finite", "logprobs_positive", "version_negative", "version_future"]
)
def test_a_result_of_a_sick_engine_is_refused_by_its_symptom_and_the_others_stay(
    desk, tasks, done, cause
):
    desk.add(tasks(1))
    desk.set_version(5)
    group = desk.lease(version=5, plan=GroupPlan(2)).group_id
    desk.put(group, done(0, version=5, reward=1.0))
    with pytest.raises(SickResult) as refused:
        desk.put(group, sick(cause, done))
    assert refused.value.cause == cause
    assert desk.row(group).resolved_slots == (0,)
    desk.put(group, done(1, version=5))
    assert desk.row(group).state == "complete"


def test_a_reflection_of_the_future_is_refused(desk, tasks):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    with pytest.raises(SickResult, match=r"1 does not exist.* 0"):
        desk.put(group, thought(version=1))


def test_results_of_steps_that_a_learner_went_back_before_are_not_of_the_future(desk, tasks, done):
    desk.add(tasks(3))
    desk.set_version(5)
    desk.set_version(3)
    desk.reopen()
    group = desk.lease(version=5).group_id
    desk.put(group, done(version=5))
    assert desk.row(group).state == "complete"
    with pytest.raises(SickResult, match="newest is 5"):
        desk.lease(version=6)


def test_a_refused_result_leaves_no_trace(desk, tasks, done):
    desk.add(tasks(2))
    group = desk.lease().group_id
    with pytest.raises(RecordError, match="not in the plan"):
        desk.put(group, done(1))
    with pytest.raises(LeaseLost):
        desk.put(group, done(0), actor="b")
    with pytest.raises(NotFound):
        desk.put("g0", done())
    with pytest.raises(StoreError, match="full"):
        desk.put(group, done(), full="its disk")
    with pytest.raises(RecordError, match="reward is 1000000001"):
        desk.put(group, done(reward=1e9 + 1))
    for cause in ("c" * 81, "with a \0"):
        with pytest.raises(RecordError, match=r"80 bytes .*printable"):
            desk.resolve(group, 0, cause)
    assert desk.row(group).resolved_slots == () and desk.index.in_flight == 1


@pytest.fixture
def two(desk, tasks, done):
    """A trained group, g0000000001, and a half-filled one, g0000000002."""
    desk.add(tasks(9))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, [done(2), done(0)], fingerprint=(0, "abc"))
    desk.resolve(group, 1, "env")
    desk.commit(desk.draw(1).draw_id, 1)
    desk.put(desk.lease(version=1, plan=GroupPlan(2)).group_id, done(1, version=1))
    return desk


def test_a_repeated_result_is_stored_once_even_after_its_lease_expired(two, done):
    group, sent = "g0000000002", done(1, version=1)
    two.now += 11
    assert two.lease("b", version=1).group_id == group
    assert two.put(group, sent, "a").new == 0
    with pytest.raises(Conflict, match="slot 1 of group g0000000002"):
        two.put(group, done(1, version=1, reward=1.0), "a")
    with pytest.raises(LeaseLost):
        two.put(group, [done(0), done(1, reward=1.0)], "a")
    assert two.put(group, done(0, version=1), "b").complete
    assert two.put(group, sent, "a").new == 0


def test_another_result_for_a_resolved_slot_is_refused_with_its_whole_put(two, done):
    with pytest.raises(Conflict):
        two.put("g0000000002", [done(0), done(1, reward=1.0)])
    with pytest.raises(Conflict):
        two.resolve("g0000000002", 1, "env")
    with pytest.raises(Conflict, match="already"):
        two.put("g0000000001", done(1))
    assert two.row("g0000000002").resolved_slots == (1,)
    assert two.resolve("g0000000001", 1, "env").new == 0
    assert verify(two.store) == []


@pytest.mark.parametrize("name", ["the holder", "somebody else"])
def test_one_of_two_clients_that_race_for_a_slot_wins(serve, tasks, done, name):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=50")
    replies = {}

    def put(client, group, actor, result, start):
        start.wait()
        try:
            replies[group, result.trajectory.reward] = client.put(group, actor, result).new
        except (Conflict, LeaseLost) as refused:
            replies[group, result.trajectory.reward] = refused

    with BufferClient(served.endpoint) as first, BufferClient(served.endpoint) as second:
        first.add_tasks(tasks(9))
        groups = [first.lease("the holder", 0, GroupPlan(2)).group_id for _ in range(20)]
        for group in groups:
            start = threading.Barrier(2)
            racers = [(first, group, "the holder", done(reward=0.0), start)]
            racers += [(second, group, name, done(reward=1.0), start)]
            threads = [threading.Thread(target=put, args=racer, daemon=True) for racer in racers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for held in first.get(groups):
            (won,) = held.rewards
            assert replies[held.group_id, won] == 1
            assert isinstance(replies[held.group_id, 1.0 - won], Conflict | LeaseLost)
    assert served.stop() == 0
    store = Store(served.folder, read_only=True)
    assert verify(store) == []
    store.close()


def test_a_group_larger_than_the_limit_is_refused_and_keeps_its_accepted_results(
    desk, tasks, done, monkeypatch
):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, done(0, length=1_040_000))
    monkeypatch.setattr(results, "GROUP_LIMIT", 2 * desk.row(group).nbytes - 1)
    with pytest.raises(LimitExceeded, match=r"g0000000001: \d+ bytes"):
        desk.put(group, done(1, length=1_040_000))
    assert desk.row(group).resolved_slots == (0,)
    monkeypatch.setattr(results, "GROUP_LIMIT", desk.row(group).nbytes)
    desk.resolve(group, 1, "x" * LABEL_LIMIT)  # a failure always has room
    desk.put(group, SlotResult(2, "failed", cause="too_large"))
    assert desk.row(group).state == "complete"
    assert desk.row(group).nbytes < codec.RECORD_LIMIT


def test_a_fingerprint_that_says_more_replaces_one_of_the_same_weights(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    for slot, told in enumerate(("one", "one/set", "one")):
        desk.put(group, done(slot), fingerprint=(0, told))
    assert desk.row(group).fingerprints == {0: "one/set"}
    assert desk.index.counts["fingerprint_conflicts"] == 0


# ── reflections ─────────────────────────────────────────────────────────────────────────────


def test_a_reflection_is_stored_once_and_resolves_no_slot(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    said = thought(tokens=5, seconds=0.25)
    ack = desk.put(group, said)
    assert (ack.new, ack.complete) == (1, False)
    assert desk.row(group).state == "leased" and desk.row(group).nbytes == len(codec.encode(said))
    assert desk.put(group, said).new == 0
    assert desk.put(group, [said, done(1)]).new == 1
    assert desk.put(group, [thought("another"), done(0)]).complete
    for actor in ("a", "somebody else"):
        assert desk.put(group, [said, done(1)], actor).new == 0  # also after the group is whole
    with desk.store.read() as txn:
        assert (txn.size("reflection"), txn.size("part")) == (2, 2)
        record = read_group(txn.group_bytes(txn.row(group)), txn.row(group))
    assert [reflection.name for reflection in record.reflections] == ["another", "reflect-0"]
    assert codec.encode(record.reflections[1]) == codec.encode(said)
    assert desk.row(group).nbytes == desk.index.counts["bytes"]
    assert desk.index.counts["puts"] == 2 and verify(desk.store) == []


def test_another_reflection_of_a_name_is_refused_with_its_whole_put(desk, tasks, done):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    desk.put(group, thought())
    other = thought(text="another")
    with pytest.raises(Conflict, match=f"reflection reflect-0 of group {group}"):
        desk.put(group, [other, done(0)])
    with pytest.raises(RecordError, match="two reflections of one name"):
        desk.put(group, [thought("new"), thought("new")])
    with pytest.raises(LeaseLost):
        desk.put(group, thought("new"), "b")
    with pytest.raises(StoreError, match="full"):
        desk.put(group, thought("new"), full="its disk")
    with pytest.raises(RecordError, match="neither a result nor a reflection"):
        desk.put(group, [])
    row = desk.row(group)
    assert row.resolved_slots == () and [name for name, _ in row.reflections] == ["reflect-0"]
    desk.put(group, [done(0), done(1)])
    with pytest.raises(Conflict):
        desk.put(group, other)
    with pytest.raises(LeaseLost, match="complete"):
        desk.put(group, thought("new"))


def test_reflections_go_to_the_next_holder_and_into_the_record_of_an_expired_group(
    make_desk, tasks, done
):
    desk = make_desk(max_staleness=1)
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    sent = [thought("b", text="ü"), thought("a")]
    desk.put(group, [*sent, done(0)])
    desk.reopen()
    desk.now += 11
    taken = desk.lease("b")
    assert taken.group_id == group and [r.slot for r in taken.accepted] == [0]
    assert [codec.encode(r) for r in taken.reflections] == [codec.encode(r) for r in sent[::-1]]
    desk.release([group], "b")
    desk.set_version(2)
    desk.do(leases.expire_overdue)
    assert desk.row(group).cause == "stale"
    with desk.store.read() as txn:
        record = read_group(txn.record(group), txn.row(group))
    assert [reflection.name for reflection in record.reflections] == ["a", "b"]
    assert verify(desk.store) == []


def test_a_group_has_no_more_reflections_than_its_limits(desk, tasks, done, monkeypatch):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    monkeypatch.setattr(results.operations, "REFLECTIONS_LIMIT", 2)
    desk.put(group, [thought("one"), thought("two")])
    with pytest.raises(LimitExceeded, match="at most 2 reflections"):
        desk.put(group, thought("three"))
    monkeypatch.setattr(results, "GROUP_LIMIT", desk.row(group).nbytes)
    with pytest.raises(LimitExceeded, match=r"g0000000001: \d+ bytes"):
        desk.put(group, [done(0, length=100), thought("one")])
    assert desk.put(group, thought("one")).new == 0


@pytest.mark.system
def test_a_reflection_outlives_a_killed_service(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=1")
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks(tasks(1))
        group = client.lease("a", 0, GroupPlan(2)).group_id
        client.put(group, "a", thought("kept"))
        served.kill()
        served = serve(served.endpoint, "learner.groups_per_step=1")
        assert client.put(group, "a", thought("kept")).new == 0
        with pytest.raises(Conflict):
            client.put(group, "a", thought("kept", text="another"))
        client.release([group], "a")
        taken = client.lease("b", 0)
        assert [reflection.name for reflection in taken.reflections] == ["kept"]
        client.put(group, "b", [done(0), done(1, of=0, reflection="kept")])
        [drawn] = client.draw(1, 0).groups
    assert [codec.encode(r) for r in drawn.reflections] == [codec.encode(thought("kept"))]

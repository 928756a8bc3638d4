"""Retention: only closed groups go, the oldest first, and every account says so."""

import msgspec
import pytest

from buffer import BufferClient
from buffer.groups import draws, leases, results, retention
from buffer.groups.retention import HOUR_S
from buffer.storage.counts import slot_drops, under
from buffer.storage.stored_rows import ArchivePlace
from buffer.tools import store_reads
from buffer.tools.verify import verify
from buffer.wire import operations
from r3l import codec
from r3l.errors import LeaseLost, NotFound
from r3l.records import GroupPlan, SlotResult
from r3l.run.settings.buffer import RetentionConfig
from r3l.text import GIB


def _trained(desk, count=2):
    """So many groups, trained in the next step."""
    version = desk.index.progress.version
    groups = [desk.complete(version=version) for _ in range(count)]
    desk.commit(desk.draw(count, version).draw_id, version + 1)
    return groups


def _evict(desk, most=retention.CHUNK, **limits):
    limits = RetentionConfig(**{"grace_s": 0.0} | limits)
    return desk.do(lambda work: retention.evict(work, limits, most))


def archive(work, group_id):
    """Moves a group to an archive that nobody reads."""
    work.archive(work.row(group_id), ArchivePlace("a.parquet", 0, 0, "digest"))


def _there(desk):
    return [row["group"] for row in store_reads.rows(desk.store)]


@pytest.fixture
def roomy(make_desk, tasks):
    desk = make_desk(groups_per_step=8, max_staleness=9)
    desk.add(tasks(20))
    return desk


def test_only_closed_groups_are_evicted_the_oldest_first(roomy, tasks, done):
    filling = roomy.lease(plan=GroupPlan(2)).group_id
    roomy.put(filling, done(0))
    first, second, third = _trained(roomy), _trained(roomy), _trained(roomy)
    undrawn, drawn = roomy.complete(), roomy.complete()
    assert drawn in roomy.draw(2).groups
    leased = roomy.lease().group_id
    gone = _evict(roomy, groups=6)
    assert gone == [*first, *second]
    assert _there(roomy) == [filling, *third, undrawn, drawn, leased]
    assert len(_evict(roomy, groups=0)) == 2
    assert _there(roomy) == [filling, undrawn, drawn, leased]
    assert _evict(roomy, groups=0, gib=0, hours=0, versions=0) == []
    assert verify(roomy.store) == []


def test_each_limit_works_alone(roomy):
    batches = []
    for _ in range(4):
        batches.append(_trained(roomy))
        roomy.now += 100
    size = roomy.row(batches[0][0]).nbytes
    assert _evict(roomy, gib=7 * size / GIB)[-1] == batches[0][0]
    assert _evict(roomy, hours=350 / HOUR_S)[-1] == batches[0][1]
    assert _evict(roomy, versions=2)[-1] == batches[1][1]
    assert _evict(roomy, groups=3)[-1] == batches[2][0]
    assert _evict(roomy) == []
    assert roomy.index.counts["bytes"] == 3 * size
    assert roomy.index.counts["evicted_bytes"] == 5 * size


def test_an_archived_group_goes_for_its_age_but_not_for_the_room_of_others(roomy):
    batches = [_trained(roomy) for _ in range(4)]
    waiting = roomy.complete(version=4)
    size = roomy.row(batches[0][0]).nbytes
    roomy.do(lambda work: [archive(work, name) for name in batches[0] + batches[2]])
    assert _evict(roomy, gib=4 * size / GIB) == batches[1][:1]
    assert _evict(roomy, gib=4 * size / GIB) == [], "what the archive has takes no room"
    assert _evict(roomy, gib=0) == [batches[1][1], *batches[3]]
    assert _there(roomy) == [*batches[0], *batches[2], waiting]
    assert roomy.index.counts["bytes"] == size and roomy.index.counts["archived"] == 4
    assert _evict(roomy, gib=0, groups=3) == batches[0]


def test_a_recently_closed_group_stays_for_the_grace_period(roomy):
    groups = [roomy.complete() for _ in range(2)]
    roomy.now += 100  # it is long since they were leased
    roomy.commit(roomy.draw(2).draw_id, 1)
    assert _evict(roomy, groups=0, grace_s=60.0) == []
    roomy.now += 61
    assert _evict(roomy, groups=0, grace_s=60.0) == groups


def test_a_group_without_attempts_is_behind_by_any_number_of_versions(roomy, done):
    failed = roomy.lease().group_id
    roomy.put(failed, SlotResult(0, "failed", cause="env"))
    trained = _trained(roomy)
    assert _evict(roomy, versions=1)[-1] == failed
    assert _there(roomy) == trained


def test_an_evicted_group_stays_refused_and_its_id_is_never_reused(roomy, done):
    groups = _trained(roomy, 8)
    _evict(roomy, groups=0)
    assert _there(roomy) == []
    for _ in range(2):
        with pytest.raises(LeaseLost, match="was evicted"):
            roomy.put(groups[0], done())
        roomy.reopen()
    with pytest.raises(NotFound, match="was evicted"):
        store_reads.group(roomy.store, groups[0])
    assert roomy.lease(version=1).group_id > groups[-1]
    assert verify(roomy.store) == []


def test_task_history_and_tags_forget_evicted_groups(roomy, tasks, done):
    roomy.set_version(1)
    roomy.add(tasks(1, "e"), "eval", "x")
    evaluated = roomy.lease(version=1).group_id
    roomy.put(evaluated, done())
    groups = _trained(roomy, 8)
    task = roomy.row(groups[-1]).task_id
    _evict(roomy, groups=1)
    with roomy.store.read() as txn:
        assert [row.group_id for row in txn.finished(task)] == [groups[-1]]
        assert txn.size("history") == txn.size("tag") == txn.size("group") == 1
    assert roomy.index.eval_done == {"x": 1}


def test_totals_of_the_run_survive_eviction_and_add_up(roomy, done):
    failed = roomy.lease().group_id
    roomy.put(failed, SlotResult(0, "failed", cause="env"))
    _trained(roomy, 4)
    roomy.complete()
    for _ in range(2):
        counts = roomy.index.counts
        assert under(roomy.index.counts, "drop/group") == {"no_trajectories": 1}
        assert slot_drops(roomy.index.counts) == {"base/env": 1}
        evicted = counts["evicted/train/trained"] + counts["evicted/train/expired"]
        assert counts["made"] == 6 == len(_there(roomy)) + evicted
        assert counts["group/train/trained"] + counts["evicted/train/trained"] == 4
        _evict(roomy, groups=2)
        roomy.reopen()
    assert evicted == 4 and verify(roomy.store) == []


def test_a_learner_resumed_before_evicted_groups_gets_the_rest(roomy):
    old, new = _trained(roomy, 4), _trained(roomy, 4)
    _evict(roomy, groups=2)
    batch, gone = store_reads.replay(roomy.store, 2)
    assert [g.group_id for g in batch] == new[2:] and gone == new[:2]
    assert store_reads.replay(roomy.store, 1) == ([], old)
    assert roomy.set_version(0) == 2
    assert roomy.index.counts["rewound_evicted"] == 6
    assert roomy.draw(2, 0).groups == tuple(new[2:])
    assert verify(roomy.store) == []


def test_the_file_stays_near_the_limit_after_ten_times_its_size(make_desk, tasks, done):
    desk = make_desk(groups_per_step=8, max_staleness=99)
    desk.add(tasks(20))
    limits, result = RetentionConfig(gib=8 / 1024, grace_s=0.0), done(length=8192)
    data = codec.encode(result)

    def turn(work, step):
        for number in range(8):
            ask = operations.AcquireLease("a", 0, GroupPlan(1), {})
            group = leases.lease(work, ask, f"{step}-{number}").group_id
            results.put(work, operations.Put(group, "a", None, (msgspec.Raw(data),)))
        drawn = draws.draw(work, operations.DrawGroups(8, 0, "learner"), f"{step}")
        draws.commit(work, operations.Commit(drawn.draw_id, step, 0))
        retention.evict(work, limits)

    for step in range(1, 10 * (8 << 20) // (8 * len(data)) + 2):
        desk.do(turn, step)
    assert desk.index.counts["bytes"] <= (8 << 20) < desk.index.counts["evicted_bytes"] / 8
    assert desk.store.disk_bytes < 1.3 * (8 << 20)


def test_the_service_evicts_by_its_own_limits(serve, tasks, done):
    served = serve(
        "tcp://127.0.0.1:0",
        "learner.groups_per_step=4",
        "buffer.retention.groups=6",
        "buffer.retention.grace_s=0",
    )
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(20))
        for step in range(1, 6):
            for _ in range(4):
                client.put(client.lease("a", step - 1, GroupPlan(1)).group_id, "a", done())
            client.commit(client.draw(4, step - 1).draw_id, step, step)
        while (stats := client.stats()).evicted < 14:
            pass  # the test's timeout is the deadline
        assert (stats.made, stats.evicted, stats.train["trained"]) == (20, 14, 6)
        assert [g.group_id for g in client.query(state="trained")][-1] == "g0000000015"
        assert client.ledger(1) == tuple(f"g{i:010d}" for i in range(1, 5))
        with pytest.raises(LeaseLost, match="evicted"):
            client.put("g0000000001", "a", done())

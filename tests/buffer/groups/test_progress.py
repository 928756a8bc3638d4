"""Progress of open slots: kept as what is new, continued bit for bit, never another one."""

import asyncio
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from buffer import AsyncBufferClient, BufferClient
from buffer.client.sent_progress import SentProgress
from buffer.groups import leases, progress, results
from buffer.storage import counts
from buffer.storage.layout import link_key
from buffer.storage.store import Store
from buffer.tools.verify import verify
from r3l import codec
from r3l.errors import (
    LeaseLost,
    LimitExceeded,
    NotFound,
    ProgressGap,
    RecordError,
    SickResult,
    StoreError,
)
from r3l.records import GroupPlan, SlotResult, Task
from tests.buffer.fakes import Desk, Served, calls, finished


def turns(count, slot=0, tokens=40):
    """The progress of an attempt after each of its turns: bytes that grow at many places."""
    return [finished(slot, length=2 + tokens * n, faults=("x",) * n) for n in range(1, count + 1)]


def taken(desk, actor="b"):
    """The progress that the next holder of the group gets, encoded, by slot."""
    desk.now += 11
    return {each.slot: codec.encode(each) for each in desk.lease(actor).partial}


@pytest.fixture
def group(desk, tasks):
    desk.add(tasks(1))
    return desk.lease(plan=GroupPlan(3)).group_id


def test_only_what_is_new_is_written_and_the_next_holder_gets_all_of_it(desk, group):
    played = turns(20)
    for serial, (before, now) in enumerate(zip([None, *played], played, strict=False), 1):
        assert desk.put_partial(group, now, since=before, serial=serial) == 1
    with desk.store.read() as txn:
        written = sum(len(data) for _, data in txn.scan("partial"))
        assert len(progress.keys_of(txn, group, 0)) == 20
    whole = len(codec.encode(played[-1]))
    assert written < 6 * whole < sum(len(codec.encode(each)) for each in played)
    assert verify(desk.store) == []
    desk.reopen()
    assert taken(desk) == {0: codec.encode(played[-1])}


def test_a_long_chain_is_written_as_one_whole_progress_again(desk, group, monkeypatch):
    monkeypatch.setattr(progress, "LINKS", 3)
    played = turns(8)
    for before, now in zip([None, *played], played, strict=False):
        desk.put_partial(group, now, since=before)
    with desk.store.read() as txn:
        assert len(progress.keys_of(txn, group, 0)) == 2
    assert taken(desk) == {0: codec.encode(played[-1])}


def test_an_increment_to_a_lost_one_is_noticed_and_the_whole_progress_mends_it(desk, group):
    one, two, three = turns(3)
    desk.put_partial(group, one, serial=1)
    with pytest.raises(ProgressGap, match=r"slot 0 of group g0000000001: .* send the whole"):
        desk.put_partial(group, three, since=two, serial=3)
    assert taken(desk, "a") == {0: codec.encode(one)}
    assert desk.put_partial(group, three, serial=4) == 1
    assert taken(desk, "a") == {0: codec.encode(three)}


def test_an_increment_whose_acknowledgement_was_lost_is_replaced_by_the_next_one(desk, group):
    one, two, three = turns(3)
    desk.put_partial(group, one, serial=1)
    desk.put_partial(group, two, since=one, serial=2)
    desk.put_partial(group, three, since=one, serial=3)  # its sender knows of no second one
    assert verify(desk.store) == [] and taken(desk) == {0: codec.encode(three)}


def test_repeated_and_late_increments_change_nothing(desk, group):
    one, two, three = turns(3)
    sent = [(one, None, 1), (two, one, 2), (three, two, 3), (two, one, 2), (one, None, 1)]
    for now, before, serial in sent:
        assert desk.put_partial(group, now, since=before, serial=serial) == 1
    assert taken(desk, "a") == {0: codec.encode(three)}
    assert desk.put_partial(group, one, serial=1) == 1  # of another lease: it counts anew
    assert taken(desk) == {0: codec.encode(one)}


def test_an_increment_that_leads_elsewhere_is_not_continued(desk, group):
    one, two, three = turns(3)
    args = calls.put_partial(group, "a", two, since=codec.encode(one)).arguments
    other = calls.put_partial(group, "a", three, since=codec.encode(one)).arguments
    for data in (other.data, b"\x93\x01\x02\x03", b"\xc1", b""):
        desk.put_partial(group, one)
        desk.do(progress.put_partial, replace(args, data=data))
        assert len(verify(desk.store)) == 1
        assert taken(desk, "a") == {0: codec.encode(one)} and verify(desk.store) == []
    assert counts.under(desk.index.counts, "partial_dropped") == {"increment": 4}
    with pytest.raises(ProgressGap, match="is not stored"):
        desk.do(progress.put_partial, replace(args, slot=1))
    with pytest.raises(RecordError, match="has a result of slot 0"):
        desk.do(progress.put_partial, replace(args, data=codec.encode(two), since="", slot=1))
    with pytest.raises(RecordError, match="differs from the sent one"):
        desk.do(progress.put_partial, replace(args, data=codec.encode(one), since=""))


def test_increments_are_no_way_around_the_limit_of_a_group(desk, group, monkeypatch):
    one, two = turns(2)
    size = len(codec.encode(two)) - 1
    monkeypatch.setattr(results, "GROUP_LIMIT", size)
    desk.put_partial(group, one)
    with pytest.raises(LimitExceeded):
        desk.put_partial(group, two, since=one)
    assert taken(desk) == {0: codec.encode(one)}


@pytest.mark.parametrize(("version", "cause"), [(-1, "version_negative"), (9, "version_future")])
def test_a_sick_increment_is_not_continued(desk, group, version, cause):
    one, two = turns(2)
    versions = np.array([version], np.int32)
    sick = replace(two.trajectory, step_versions=versions, step_newest_versions=versions)
    desk.put_partial(group, one)
    desk.put_partial(group, replace(two, trajectory=sick), since=one)
    assert taken(desk) == {}
    assert counts.under(desk.index.counts, "partial_dropped") == {cause: 1}


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_damaged_link_costs_what_comes_after_it(desk, group, broken):
    played = turns(3)
    for before, now in zip([None, *played], played, strict=False):
        desk.put_partial(group, now, since=before)
    key = link_key(group, 0, broken)
    with desk.store.write() as txn:
        txn._raw.put(key, b"damaged, surely", db=txn._tables["partial"])
    assert len(verify(desk.store)) == 2  # the value, and the chain that ends before it
    sound = {0: codec.encode(played[broken - 1])} if broken else {}
    assert taken(desk) == sound and verify(desk.store) == []
    dropped = counts.under(desk.index.counts, "partial_dropped")
    assert dropped == ({"increment": 3 - broken} if broken else {"damaged": 1})


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_is_lost_repeated_or_late_the_progress_is_one_that_was_sent(
    tmp_path_factory, data
):
    desk = Desk(tmp_path_factory.mktemp("desk") / "store")
    group = _group(desk)
    played = turns(6, tokens=3)
    acknowledged, late, newest = None, [], None
    for serial, now in enumerate(played, 1):
        args = calls.put_partial(
            group,
            "a",
            now,
            since=None if acknowledged is None else codec.encode(acknowledged),
            serial=serial,
        ).arguments
        for old in data.draw(st.lists(st.sampled_from(late), max_size=2)) if late else []:
            _sent(desk, old)
        fate = data.draw(st.sampled_from(["acknowledged", "lost", "reply lost", "late"]))
        if fate == "late" or fate == "reply lost":
            late.append(args)
        if fate in ("acknowledged", "reply lost") and _sent(desk, args):
            newest = now
        if fate == "acknowledged":
            acknowledged = now if newest is now else None
    assert verify(desk.store) == []
    found = taken(desk).get(0)
    sent = {codec.encode(each) for each in played}
    assert found in sent if newest is not None else found is None or found in sent
    if newest is not None:  # never less than what was stored last
        assert len(found) >= len(codec.encode(newest))
    desk.store.close()


def _group(desk):
    desk.add([Task("t0", "workshop", 0)])
    return desk.lease(plan=GroupPlan(1)).group_id


def _sent(desk, args):
    try:
        return desk.do(progress.put_partial, args).count
    except ProgressGap:
        return 0


def test_the_newest_progress_of_an_open_slot_goes_to_the_next_holder(desk, tasks, done):
    desk.add(tasks(1))
    lease = desk.lease(plan=GroupPlan(3))
    retry = done(2, of=0, length=7)
    for result in (done(1, length=8), done(1, length=9), retry):
        assert desk.put_partial(lease.group_id, result) == 1
    desk.put(lease.group_id, done(0))
    assert desk.draw(1) is None and desk.row(lease.group_id).resolved_slots == (0,)
    desk.reopen()
    desk.now += 11
    taken = desk.lease("b")
    assert taken.group_id == lease.group_id and len(taken.accepted) == 1
    expected = [codec.encode(done(1, length=9)), codec.encode(retry)]
    assert [*map(codec.encode, taken.partial)] == expected and verify(desk.store) == []


@pytest.mark.parametrize("end", ["put", "failed", "stale"])
def test_progress_ends_with_its_slot_and_with_its_group(make_desk, tasks, done, end):
    desk = make_desk(max_staleness=1)
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    desk.put_partial(group, done(0))
    desk.put_partial(group, done(1))
    desk.put(group, done(0))
    with desk.store.read() as txn:
        assert len(txn.partial_keys(group)) == 1
    if end == "put":
        desk.put(group, done(1, reward=1.0))
    elif end == "failed":
        desk.resolve(group, 1, "env")
    else:
        desk.release([group])
        desk.set_version(2)
        desk.do(leases.expire_overdue)
    assert not desk.row(group).unfinished and verify(desk.store) == []
    with desk.store.read() as txn:
        assert txn.size("partial") == 0
    if end != "stale":
        assert desk.put_partial(group, done(1)) == 0
    with desk.store.read() as txn:
        assert txn.size("partial") == 0


def test_progress_is_refused_from_those_who_do_not_hold_the_group_and_for_unknown_slots(
    desk, tasks, done
):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(1)).group_id
    with pytest.raises(LeaseLost, match="not leased to 'b'"):
        desk.put_partial(group, done(0), "b")
    with pytest.raises(RecordError, match="not in the plan"):
        desk.put_partial(group, done(1))
    with pytest.raises(SickResult):
        desk.put_partial(group, done(0, version=9))
    with pytest.raises(RecordError, match="slot 0: has no trajectory"):
        desk.put_partial(group, SlotResult(0, "skipped"))
    with pytest.raises(StoreError, match="full"):
        desk.put_partial(group, done(0), full="the disk")
    with pytest.raises(NotFound):
        desk.put_partial("g9999999999", done(0))
    with desk.store.read() as txn:
        assert txn.size("partial") == 0


def test_progress_that_nobody_can_continue_is_dropped_and_counted(desk, tasks, done, monkeypatch):
    desk.add(tasks(1))
    desk.set_version(3)
    group = desk.lease(version=3, plan=GroupPlan(4)).group_id
    desk.put_partial(group, done(0, version=1))
    for slot in (1, 2, 3):
        desk.put_partial(group, done(slot, version=3))
    key = link_key(group, 1, 0)
    with desk.store.write() as txn:
        txn.delete("partial", key)
        txn._raw.put(key, b"damaged, surely", db=txn._tables["partial"])
    size = len(codec.encode(done(2)))
    monkeypatch.setattr(results, "GROUP_LIMIT", 2 * size - 1)
    desk.release([group])
    assert [r.slot for r in desk.lease("b", 3).partial] == [2]
    dropped = counts.under(desk.index.counts, "partial_dropped")
    assert dropped == {"stale": 1, "damaged": 1, "too_large": 1}
    assert verify(desk.store) == []


def test_progress_survives_kills_of_the_service_and_continues_bit_for_bit(tmp_path):
    """A real service, killed between and during the saves of an attempt of 24 turns."""
    played, kills = turns(24), {5, 11, 17}
    options = ("buffer.lease_s=600", "learner.groups_per_step=9")
    served = Served(tmp_path / "store", "tcp://127.0.0.1:0", *options)

    async def play():
        nonlocal served
        sent = SentProgress(events := Counter())
        async with AsyncBufferClient(served.endpoint, name="a", timeout_s=300) as client:
            await client.add_tasks([Task("t0", "workshop", 0)])
            group = (await client.lease("a", 0, GroupPlan(1))).group_id
            for number, now in enumerate(played):
                saving = asyncio.create_task(sent.put(client, group, "a", now))
                if number in kills:
                    await asyncio.sleep(0.01 * (number % 3))
                    served.process.kill()
                    served.process.wait()
                    place = tmp_path / "store", served.endpoint
                    served = await asyncio.to_thread(Served, *place, *options)
                await saving
        return group, events["resent"]

    group, resent = asyncio.run(play())
    assert resent == 0  # what was acknowledged is on disk
    with BufferClient(served.endpoint, name="b") as client:
        client.release([group], "a")
        lease = client.lease("b", 0)
        assert lease.group_id == group
        assert [codec.encode(each) for each in lease.partial] == [codec.encode(played[-1])]
        client.put(group, "b", played[-1])
    assert served.stop() == 0
    store = Store(tmp_path / "store", read_only=True)
    assert verify(store) == []
    store.close()

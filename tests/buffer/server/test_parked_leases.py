"""Leases wait for work in line, and are answered when their time is over."""

import threading

import pytest
import zmq

from buffer import BufferClient, Lease, Wait
from buffer.groups import leases
from buffer.server.parked_leases import AT_ONCE, EVERY_S, ParkedLeases
from buffer.wire.messages import ReceivedRequest
from buffer.wire.operations import OPERATIONS, AcquireLease
from r3l.records import GroupPlan
from tests.buffer.fakes import calls, until


def request(rid, wait_s=2.0):
    args = AcquireLease("a", 0, wait_s=wait_s)
    return ReceivedRequest(b"a", OPERATIONS["lease"], rid, args)


def names(requests):
    return [each.rid for each in requests]


def test_a_parked_lease_is_tried_when_the_outlook_changes_and_once_a_second():
    parked = ParkedLeases()
    assert parked.take("few", 100.0) == [] and parked.next_at("few") == float("inf")
    assert parked.park(request("one"), 100.0)
    assert names(parked.take("few", 100.1)) == ["one"], "the outlook was not known"
    assert parked.park(request("one"), 100.1) and parked.park(request("two"), 100.1)
    assert parked.take("few", 100.2) == []
    assert names(parked.take("many", 100.3)) == ["one", "two"]
    assert parked.park(request("two"), 100.3) and parked.park(request("one"), 100.3)
    assert parked.next_at("many") == pytest.approx(100.3 + EVERY_S)
    assert parked.next_at("few") == 0.0
    assert names(parked.take("many", 100.3 + EVERY_S)) == ["two", "one"], "in their new order"


def test_a_lease_is_parked_for_its_time_in_all_and_then_answered():
    parked = ParkedLeases()
    parked.take("few", 100.0)
    assert parked.park(request("one"), 100.0) and parked.park(request("two", 9.0), 100.0)
    parked.take("few", 100.5)
    for rid, wait_s in (("one", 2.0), ("two", 9.0)):
        assert parked.park(request(rid, wait_s), 101.0)
    parked.take("few", 101.9)
    for rid, wait_s in (("one", 2.0), ("two", 9.0)):
        parked.park(request(rid, wait_s), 101.95)
    assert parked.next_at("few") == 102.0
    assert names(parked.take("few", 102.01)) == ["one"]
    assert not parked.park(request("one"), 102.01)
    assert parked.park(request("one"), 110.0), "a new request with the same id"


def test_few_are_tried_at_once_and_all_are_answered_at_the_end():
    parked = ParkedLeases()
    for number in range(3 * AT_ONCE):
        parked.park(request(f"r{number}"), 100.0)
    first = parked.take("one", 100.0)
    assert len(first) == AT_ONCE
    assert names(parked.take("two", 100.0)) == [f"r{AT_ONCE + n}" for n in range(AT_ONCE)]
    parked.answered(first[0], granted=False)
    assert parked.next_at("two") > 0
    parked.answered(first[1], granted=True)
    assert parked.next_at("two") == 0.0, "there may be more groups for those behind"
    assert len(parked.take_all()) == AT_ONCE and len(parked) == 0
    assert not parked.park(request(f"r{3 * AT_ONCE - 1}"), 100.0)


def test_the_outlook_changes_with_what_a_refused_lease_waits_for(make_desk, tasks):
    desk = make_desk(groups_per_step=2, max_staleness=0)
    seen = [leases.outlook(desk.index, 2)]

    def changed():
        seen.append(leases.outlook(desk.index, 2))
        return seen[-1] != seen[-2]

    desk.add(tasks(9))
    assert changed()
    first, _ = desk.complete(), desk.complete()
    assert changed() and isinstance(desk.lease(), Wait) and not changed()
    draw = desk.draw(2)
    assert changed()
    desk.commit(draw.draw_id, 1)
    assert changed()
    leased = desk.lease(version=1).group_id
    desk.release([leased])
    assert changed() and first


@pytest.mark.system
def test_an_actor_that_waits_gets_the_work_that_comes(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=1", "buffer.max_staleness=0")
    granted = []
    with (
        BufferClient(served.endpoint, timeout_s=60) as client,
        BufferClient(served.endpoint, name="actor", timeout_s=60) as actor,
    ):

        def started(name, version):
            def ask():
                granted.append(actor.lease(name, version, wait_s=30))

            thread = threading.Thread(target=ask, daemon=True)
            thread.start()
            return thread

        waiting = started("a", 0)
        client.add_tasks(tasks(1))
        waiting.join(60)
        assert isinstance(granted.pop(), Lease)
        waited = client.lease("b", 0, GroupPlan(1), wait_s=0.2)
        assert isinstance(waited, Wait) and "waits for the learner" in waited.reason
        client.set_version(1)
        assert client.lease("b", 0, wait_s=30).for_weights, "it is told at once"
        waiting = started("c", 1)
        until(lambda: "c" in client.stats().actors)
        assert served.stop() == 0
        waiting.join(60)
        assert isinstance(granted.pop(), Wait), "it is answered when the service ends"


@pytest.mark.system
def test_a_group_leased_to_an_actor_that_died_while_it_waited_goes_to_another(serve, tasks):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=1", "buffer.max_staleness=0")
    context = zmq.Context()
    dying = context.socket(zmq.DEALER)
    dying.connect(served.endpoint)
    with BufferClient(served.endpoint, timeout_s=60) as client:
        dying.send_multipart(calls.lease("dead", 0, wait_s=30).frames("dead-1"))
        until(lambda: "dead" in client.stats().actors)
        context.destroy(linger=0)
        client.add_tasks(tasks(1))
        until(lambda: client.stats().undelivered)
        lease = client.lease("b", 0, wait_s=30)
        assert isinstance(lease, Lease) and lease.group_id == "g0000000001"
        assert client.stats().leases == 2

"""Handlers of the writer: requests are held until there is a result, and each gets one reply."""

import time
from collections import Counter

import pytest
import zmq

from buffer import BufferClient
from buffer.client import calls
from buffer.server.handlers import WriteHandlers
from buffer.wire import messages
from buffer.wire.messages import CREDIT, reply_id
from buffer.wire.operations import DrawHead
from r3l.errors import Conflict, LimitExceeded
from r3l.records import GroupPlan


@pytest.fixture
def handlers(desk):
    return WriteHandlers(desk.store, Counter())


def _request(call, rid="r"):
    header, *rest = call.frames(rid, 0.0)
    return messages.read_request(b"client", messages.read_header([header]), rest)


def _held(desk, handlers, *, last=False):
    return desk.do(lambda work: handlers.handle_held(work, last=last))


def _handle(desk, handlers, call, rid="r"):
    return desk.do(handlers.handle, _request(call, rid))


def test_a_draw_that_may_wait_is_held_until_there_are_groups(desk, handlers, tasks, done):
    desk.add(tasks(3))
    before = time.monotonic()
    assert _handle(desk, handlers, calls.draw(1, 0, wait_s=60.0)) is None
    assert before + 60.0 <= handlers.held_until() <= time.monotonic() + 60.0
    assert _held(desk, handlers) == []
    group = desk.lease().group_id
    desk.put(group, done())
    ((request, read),) = _held(desk, handlers)
    assert request.client == b"client" and handlers.held_until() == float("inf")
    with desk.store.read() as txn:
        head, groups = read(txn)
    assert head.draw_id == 1 and head.now[0].state == "drawn" and len(groups) == 1


def test_a_draw_that_may_not_wait_says_why_there_are_no_groups(desk, handlers):
    reply = _handle(desk, handlers, calls.draw(1, 0))
    assert reply == DrawHead(reason="0 of 1 groups are there; no training task is registered")
    assert _held(desk, handlers) == []


def test_every_held_draw_gets_its_reason_when_the_service_stops(desk, handlers):
    for number in range(3):
        assert _handle(desk, handlers, calls.draw(1, 0, wait_s=60.0), f"r{number}") is None
    replies = [reply for _, reply in _held(desk, handlers, last=True)]
    assert [reply.draw_id for reply in replies] == [0] * 3 and all(r.reason for r in replies)


def test_a_consumer_that_releases_its_draws_ends_those_that_are_held(desk, handlers, tasks, done):
    desk.add(tasks(3))
    for consumer in ("learner", "another"):
        _handle(desk, handlers, calls.draw(1, 0, consumer=consumer, wait_s=60.0), consumer)
    _handle(desk, handlers, calls.release_draws("learner"), "release")
    desk.put(desk.lease().group_id, done())  # it is not drawn for the one that was released
    (ended, reply), (served, _) = _held(desk, handlers)
    assert ended.rid == "learner" and reply.reason == "its consumer released its draws"
    assert served.rid == "another"


def test_a_held_draw_that_becomes_impossible_is_refused_and_harms_no_other_request(
    desk, handlers, tasks, done
):
    desk.add(tasks(3))
    desk.set_version(4)
    assert _handle(desk, handlers, calls.draw(1, 5, wait_s=60.0)) is None
    desk.set_version(2)
    ((_, error),) = _held(desk, handlers)
    assert isinstance(error, Conflict) and "draw at version 5" in str(error)
    assert _held(desk, handlers) == []


@pytest.fixture
def learner():
    """A learner's socket, for requests whose replies are taken later, or never."""
    context = zmq.Context()
    yield context.socket(zmq.DEALER)
    context.destroy(linger=0)


def _reply(learner, call, rid):
    assert learner.poll(15_000), f"no reply to {rid}"
    frames = learner.recv_multipart()
    assert reply_id(frames) == rid
    return call.read(frames)


def _wait_for_a_draw(learner, endpoint, explain=None):
    """Ask for a group there is not yet; returns the call once the service has it."""
    learner.connect(endpoint)
    draw, stats = calls.draw(1, 0, wait_s=60.0, explain=explain), calls.stats()
    learner.send_multipart(draw.frames("waits", 0.0))
    learner.send_multipart(stats.frames("after it", 0.0))
    assert _reply(learner, stats, "after it").draws == 0
    return draw


@pytest.mark.system
def test_a_waiting_draw_gets_its_reason_when_the_service_stops(serve, learner):
    served, said = serve(), []
    draw = _wait_for_a_draw(learner, served.endpoint, said.append)
    assert served.stop() == 0
    assert _reply(learner, draw, "waits") is None
    assert said == ["0 of 1 groups are there; no training task is registered"]


@pytest.mark.system
def test_a_waiting_draw_of_a_dead_learner_gets_nothing_after_its_restart(
    serve, learner, tasks, done
):
    served = serve()
    _wait_for_a_draw(learner, served.endpoint)
    with BufferClient(served.endpoint) as client:
        client.release_draws("another one")
        client.release_draws()
        client.add_tasks(tasks(1))
        client.put(client.lease("a", 0, GroupPlan(1)).group_id, "a", done())
        assert client.stats().drawn_by == {}
        assert len(client.draw(1, 0).groups) == 1


@pytest.mark.system
def test_a_client_with_the_most_waiting_requests_is_refused_one_more(serve, learner):
    served = serve()
    learner.connect(served.endpoint)
    draw, stats = calls.draw(1, 0, wait_s=60.0), calls.stats()
    for number in range(CREDIT):
        learner.send_multipart(draw.frames(f"draw {number}", 0.0))
    learner.send_multipart(stats.frames("one more", 0.0))
    with pytest.raises(LimitExceeded, match=f"{CREDIT} requests wait for replies"):
        _reply(learner, stats, "one more")
    with BufferClient(served.endpoint) as client:
        assert client.stats().refused == {"LimitExceeded": 1}
    assert served.stop() == 0
    for number in range(CREDIT):  # and every one of them is replied to
        assert _reply(learner, draw, f"draw {number}") is None

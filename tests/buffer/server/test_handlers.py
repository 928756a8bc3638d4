"""Handlers of the writer: requests are held until there is a result, and each gets one reply."""

from collections import Counter

import pytest
import zmq

from buffer import BufferClient
from buffer.server.handlers import WriteHandlers
from buffer.wire import messages
from buffer.wire.messages import REQUESTS_IN_FLIGHT, reply_id
from buffer.wire.operations import DrawHead
from r3l.errors import LimitExceeded
from r3l.records import GroupPlan
from tests.buffer.fakes import calls


@pytest.fixture
def handlers(desk):
    return WriteHandlers(desk.store, Counter())


def _request(call, rid="r"):
    header, *rest = call.frames(rid, 0.0)
    return messages.read_request(b"client", messages.read_header([header]), rest)


def _handle(desk, handlers, call, rid="r"):
    return desk.do(handlers.handle, _request(call, rid))


def test_a_draw_that_may_not_wait_says_why_there_are_no_groups(desk, handlers):
    reply = _handle(desk, handlers, calls.draw(1, 0))
    assert reply == DrawHead(reason="0 of 1 groups are ready; no training task is registered")
    assert handlers.held.until == float("inf")


def test_a_name_that_cannot_be_shown_does_not_come_into_the_stats(desk, handlers):
    for call in (calls.renew((), "a\nb"), calls.lease("a\x1b[2J", 0, GroupPlan(1))):
        assert "printable" in str(_handle(desk, handlers, call))
    assert _handle(desk, handlers, calls.stats()).actors == {}


@pytest.fixture
def learner():
    """A learner's socket, for requests whose replies are taken later, or never."""
    context = zmq.Context()
    yield context.socket(zmq.DEALER)
    context.destroy(linger=0)


def _reply(learner, call, rid):
    assert learner.poll(60_000), f"no reply to {rid}"
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
    assert said == ["the buffer service is stopping"]


@pytest.mark.system
def test_a_waiting_draw_of_a_dead_learner_gets_nothing(serve, learner, tasks, done):
    served = serve()
    _wait_for_a_draw(learner, served.endpoint)
    learner.close(linger=0)
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(1))
        client.put(client.lease("a", 0, GroupPlan(1)).group_id, "a", done())
        assert client.stats().drawn_by == {}
        assert len(client.draw(1, 0).groups) == 1


@pytest.mark.system
def test_a_client_with_the_most_waiting_requests_is_refused_one_more(serve, learner):
    served = serve()
    learner.connect(served.endpoint)
    draw, stats = calls.draw(1, 0, wait_s=60.0), calls.stats()
    for number in range(REQUESTS_IN_FLIGHT):
        learner.send_multipart(draw.frames(f"draw {number}", 0.0))
    learner.send_multipart(stats.frames("one more", 0.0))
    with pytest.raises(LimitExceeded, match=f"{REQUESTS_IN_FLIGHT} requests are already waiting"):
        _reply(learner, stats, "one more")
    with BufferClient(served.endpoint) as client:
        assert client.stats().refused == {"LimitExceeded": 1}
    assert served.stop() == 0
    for number in range(REQUESTS_IN_FLIGHT):  # and every one of them is replied to
        assert _reply(learner, draw, f"draw {number}") is None

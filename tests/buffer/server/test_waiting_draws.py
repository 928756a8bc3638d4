"""Draws that wait for groups: ended when the service stops, and when their learner starts again."""

import pytest
import zmq

from buffer import BufferClient
from buffer.client import calls
from buffer.wire.messages import CREDIT, reply_id
from r3l.errors import LimitExceeded
from r3l.records import GroupPlan

pytestmark = pytest.mark.system


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


def test_a_draw_that_waits_is_told_why_not_when_the_service_stops(serve, learner):
    served, said = serve(), []
    draw = _wait_for_a_draw(learner, served.endpoint, said.append)
    assert served.stop() == 0
    assert _reply(learner, draw, "waits") is None
    assert said == ["0 of 1 groups are there; no training task is registered"]


def test_what_a_dead_learner_waited_for_is_not_drawn_for_it_once_it_started_again(
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


def test_who_has_as_many_requests_waiting_as_it_may_is_refused_one_more(serve, learner):
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

"""No reply is lost silently: replies that a slow client misses are counted."""

import time

import pytest
import zmq

from buffer import BufferClient
from buffer.client import calls
from r3l.records import GroupPlan

pytestmark = pytest.mark.system

REQUESTS = 4000
FORGETFUL = """
import zmq
keep = zmq.Socket.set
zmq.Socket.set = lambda s, o, v: None if o == zmq.ROUTER_MANDATORY else keep(s, o, v)
"""


def _sent_and_received(served, tasks, done):
    """Requests of a client that reads only later, replies it received, replies counted as lost."""
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks(tasks(1))
        group = client.lease("a", 0, GroupPlan(1)).group_id
        client.put(group, "a", done(length=10_000))
        context = zmq.Context()
        slow = context.socket(zmq.DEALER)
        slow.set(zmq.RCVHWM, 1)
        slow.set(zmq.SNDHWM, 0)
        slow.set(zmq.RCVBUF, 4096)
        slow.connect(served.endpoint)
        for number in range(REQUESTS):
            slow.send_multipart(calls.get([group]).frames(f"r{number}", 0.0))
        _quiet(client)
        received = 0
        while slow.poll(2000):
            slow.recv_multipart()
            received += 1
        context.destroy(linger=0)
        return REQUESTS, received, client.stats().undelivered


def _quiet(client):
    """Wait until the service has dealt with every request."""
    before = None
    while (now := (client.stats().undelivered, client.stats().refused)) != before:
        before = now
        time.sleep(1)


def test_every_reply_arrives_or_is_counted(serve, tasks, done):
    sent, received, lost = _sent_and_received(serve(), tasks, done)
    assert lost > 0 and received + lost == sent


def test_a_router_that_drops_silently_fails_the_same_test(serve, tasks, done):
    sent, received, lost = _sent_and_received(serve(change=FORGETFUL), tasks, done)
    assert received + lost < sent

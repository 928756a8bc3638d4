"""No reply is lost silently: replies that a slow client misses are counted."""

import os
import time

import psutil
import pytest
import zmq

from buffer import BufferClient
from buffer.server.replies import UNSENT_LIMIT, Replies
from buffer.wire.messages import ReceivedRequest, read_reply
from buffer.wire.operations import OPERATIONS, Ids
from r3l.errors import LimitExceeded
from r3l.records import GroupPlan
from tests.buffer.fakes import calls, until

pytestmark = pytest.mark.system

REQUESTS = 4000


def test_a_reply_that_is_too_large_is_refused_and_ends_no_thread():
    replies = Replies()
    asked = ReceivedRequest(b"", OPERATIONS["stats"], "r", None)
    replies.put(asked, Ids(tuple("x" * 1000 for _ in range(17_000))))
    replies.wake_front()
    (refused,) = replies.take()
    assert refused.error == "LimitExceeded"
    with pytest.raises(LimitExceeded, match=r"stats: the reply cannot be sent: 17.*; ask for less"):
        read_reply("stats", refused.frames)
    os.close(replies.ready)


FORGETFUL = """
import zmq
keep = zmq.Socket.set
zmq.Socket.set = lambda s, o, v: None if o == zmq.ROUTER_MANDATORY else keep(s, o, v)
"""


def _sent_and_received(served, tasks, done, patience_s):
    """Requests of a client that reads only later, replies it received, replies counted as lost.
    `patience_s`: how long it waits for a reply that is missing."""
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
            slow.send_multipart(calls.get([group]).frames(f"r{number}"))
        _quiet(client)
        received, lost = 0, client.stats().undelivered
        while received + lost < REQUESTS and slow.poll(1000 * patience_s):
            while slow.poll(100):
                slow.recv_multipart()
                received += 1
            lost = client.stats().undelivered
        context.destroy(linger=0)
        return REQUESTS, received, lost


def _quiet(client):
    """Wait until the service has dealt with every request."""
    seen = [None]
    while len(seen) < 4 or any(one != seen[-1] for one in seen[-3:]):
        stats = client.stats()
        seen.append((stats.undelivered, stats.refused))
        time.sleep(1)


def test_every_reply_arrives_or_is_counted(serve, tasks, done):
    sent, received, lost = _sent_and_received(serve(), tasks, done, 60)
    assert lost > 0 and received + lost == sent


def test_a_router_that_drops_silently_fails_this_check(serve, tasks, done):
    sent, received, lost = _sent_and_received(serve(change=FORGETFUL), tasks, done, 2)
    assert received + lost < sent


def test_a_client_that_takes_its_replies_gets_as_many_as_it_requests(serve, tasks, done):
    served = serve()
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(1))
        group = client.lease("a", 0, GroupPlan(1)).group_id
        client.put(group, "a", done(length=600_000))
        taken = 0
        while taken < 1.5 * UNSENT_LIMIT:
            (got,) = client.get([group])
            taken += 8 * len(got.trajectories[0].token_ids)
        assert client.stats().refused == {}


def test_a_client_that_never_takes_its_replies_gets_no_more_than_its_share(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=99")
    process = psutil.Process(served.process.pid)
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks(tasks(4))
        groups = [client.lease("a", 0, GroupPlan(1)).group_id for _ in range(4)]
        for group in groups:
            client.put(group, "a", done(length=900_000))
        before = process.memory_info().rss
        context = zmq.Context()
        stuck = context.socket(zmq.DEALER)
        stuck.set(zmq.RCVHWM, 1)
        stuck.connect(served.endpoint)
        for number in range(60):  # 60 replies of 32 MB
            stuck.send_multipart(calls.get(groups).frames(f"r{number}"))
        until(lambda: client.stats().refused.get("LimitExceeded", 0) > 20)
        assert len(client.get(groups[:1])) == 1
        assert process.memory_info().rss - before < 3 * UNSENT_LIMIT + (64 << 20)
        context.destroy(linger=0)

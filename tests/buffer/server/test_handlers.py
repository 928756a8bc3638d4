"""Requests that are held until there is a result."""

import time
from collections import Counter

import pytest

from buffer.client import calls
from buffer.server.handlers import WriteHandlers
from buffer.wire import messages
from buffer.wire.operations import DrawHead
from r3l.errors import Conflict


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
    assert _handle(desk, handlers, calls.draw(1, 0, wait_s=60.0)) is None
    assert 50.0 < handlers.held_until() - time.monotonic() < 60.0
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


def test_when_the_service_stops_every_held_draw_says_why_there_are_no_groups(desk, handlers):
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

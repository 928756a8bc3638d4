"""Handlers of the writer: each request gets one reply."""

from collections import Counter

import pytest

from buffer.server.handlers import WriteHandlers
from buffer.wire import messages
from buffer.wire.operations import DrawHead
from r3l.records import GroupPlan
from tests.buffer.fakes import calls


@pytest.fixture
def handlers(desk):
    return WriteHandlers(desk.store, Counter())


def _request(call, rid="r"):
    header, *rest = call.frames(rid)
    return messages.read_request(b"client", messages.read_header([header]), rest)


def _handle(desk, handlers, call, rid="r"):
    return desk.do(handlers.handle, _request(call, rid))


def test_a_draw_says_why_there_are_no_groups(desk, handlers):
    reply = _handle(desk, handlers, calls.draw(1, 0))
    assert reply == DrawHead(reason=reply.reason)
    assert "0 of 1 groups" in reply.reason and "no training task" in reply.reason


def test_a_name_that_cannot_be_shown_does_not_come_into_the_stats(desk, handlers):
    for call in (calls.renew((), "a\nb"), calls.lease("a\x1b[2J", 0, GroupPlan(1))):
        assert "printable" in str(_handle(desk, handlers, call))
    assert _handle(desk, handlers, calls.stats()).actors == {}


def test_metrics_that_are_not_finite_are_counted_and_the_lease_is_kept(desk, handlers, tasks):
    desk.add(tasks(1))
    call = calls.lease("a", 0, GroupPlan(1), {"good": 1.0, "bad": float("nan")})
    assert _handle(desk, handlers, call)[0].group_id
    found = _handle(desk, handlers, calls.stats())
    assert found.refused == {"metrics_not_finite": 1} and found.actors["a"]["good"] == 1.0
    many = {f"m{n}": 1.0 for n in range(100_000)}
    assert "100000 metrics" in str(_handle(desk, handlers, calls.renew((), "a", many), "s"))


def test_a_copy_that_comes_after_a_draw_ended_without_groups_takes_none(desk, handlers, tasks):
    desk.add(tasks(3))
    assert "0 of 1 groups" in _handle(desk, handlers, calls.draw(1, 0)).reason
    desk.complete()
    assert "1 of 1 groups" in _handle(desk, handlers, calls.draw(1, 0)).reason
    assert desk.index.draws == {}
    read = _handle(desk, handlers, calls.draw(1, 0), "another")
    with desk.store.read() as txn:
        head, groups = read(txn)
    assert head.row.draw_id == 1 and head.now[0].state == "drawn" and len(groups) == 1

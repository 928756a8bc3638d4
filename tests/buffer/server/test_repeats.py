"""Requests that are sent again are told from new ones."""

import pytest

from buffer.server import repeats
from buffer.server.repeats import Repeats
from buffer.wire import messages
from buffer.wire.messages import ReceivedRequest
from buffer.wire.operations import OPERATIONS, GetStats
from r3l import codec
from r3l.records import GroupPlan
from tests.buffer.fakes import calls

KEY = ("stats", "r1")


def request(client=b"a", total=7, rid="r1"):
    return ReceivedRequest(client, OPERATIONS["stats"], rid, GetStats(), 0, total)


def test_a_request_is_known_from_its_beginning_on_by_its_checksum_or_an_inquiry():
    known = Repeats()
    assert known.find(KEY, 7) is known.find(KEY, None) is None
    known.begin(request())
    for total in (7, None):
        assert known.find(KEY, total).client == b"a"
    assert known.find(KEY, 8) is None, "another request with this id"
    assert known.find(("put", "r1"), None) is None


def test_the_reply_goes_to_the_client_that_asked_last_and_is_kept_if_it_is_small():
    known = Repeats()
    known.begin(request())
    known.find(KEY, 7).client = b"b"
    assert known.end(request(), [b"header", b"reply"]) == b"b"
    assert (known.find(KEY, 7).client, known.find(KEY, 7).frames) == (None, [b"header", b"reply"])
    known.begin(request(rid="r2"))
    assert known.end(request(rid="r2"), [bytes(repeats.KEPT_BYTES + 1)]) == b"a"
    assert known.find(("stats", "r2"), 7).frames == ()
    known.forget(request())
    assert known.find(KEY, 7) is None


def test_a_request_without_a_checksum_is_never_a_repeat():
    known = Repeats()
    known.begin(request(total=None))
    assert known.find(KEY, 0) is known.find(KEY, None) is None
    assert known.end(request(b"b", None), [b"x"]) == b"a"
    assert known.end(request(b"b", None), [b"x"]) == b"b", "two under way with one id"
    assert known.find(KEY, None) is None


def test_replies_are_kept_for_a_while_and_up_to_a_number(monkeypatch):
    monkeypatch.setattr(repeats, "KEPT", 2)
    known = Repeats()
    for number in range(3):
        known.begin(request(rid=f"r{number}"))
        known.end(request(rid=f"r{number}"), [b"x"])
    assert [known.find(("stats", f"r{number}"), 7) is None for number in range(3)] == [
        True, False, False,
    ]  # fmt: skip
    monkeypatch.setattr(repeats, "KEPT_S", -1.0)
    assert known.find(("stats", "r2"), 7) is None


@pytest.mark.system
def test_whoever_asks_what_became_of_progress_gets_its_reply_also_a_gap(client, raw, tasks, done):
    client.add_tasks(tasks(1))
    group = client.lease("a", 0, GroupPlan(1)).group_id
    first, second = done(length=5_000), done(length=9_000)
    gap = calls.put_partial(group, "a", second, since=codec.encode(first), serial=1)
    whole = calls.put_partial(group, "a", second, serial=2)
    asked = messages.inquiry_frames("put_partial", "gap")
    assert raw(*asked)["sign"] == messages.WANTED
    for call, rid, error in ((gap, "gap", "ProgressGap"), (whole, "whole", None)):
        asked = messages.inquiry_frames("put_partial", rid)
        for frames in (call.frames(rid), call.frames(rid), asked, asked):
            reply = raw(*frames)
            assert (reply["rid"], reply["ok"], reply.get("error")) == (rid, not error, error)
    client.release([group], "a")
    (partial,) = client.lease("b", 0).partial
    assert codec.encode(partial) == codec.encode(second)

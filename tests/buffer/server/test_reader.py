"""A reading thread answers in order, and no read ends it."""

import threading

from buffer.server.reader import Reader
from buffer.wire.messages import ReceivedRequest
from buffer.wire.operations import OPERATIONS, Amount, GetStats
from r3l.errors import LimitExceeded, NotFound


class Replies:
    """Keeps what is put to it. `full`: this client takes no more."""

    def __init__(self, full=b""):
        self.put_, self.woken, self.full = [], 0, full

    def put(self, request, reply, following=()):
        self.put_.append((request.rid, reply, list(following)))

    def check_unsent(self, client):
        if client == self.full:
            raise LimitExceeded("receive some replies first")

    def wake_front(self):
        self.woken += 1


def test_every_request_is_answered_also_after_a_read_that_fails(desk):
    replies = Replies(full=b"full")
    reader = Reader(desk.store, replies)

    def fails(txn):
        raise ZeroDivisionError("a fault")

    def refuses(txn):
        raise NotFound("there is no group")

    for rid, client, read in (
        ("one", b"a", lambda txn: (Amount(txn.size("state")), [b"frame"])),
        ("two", b"a", fails),
        ("three", b"a", refuses),
        ("four", b"full", fails),
        ("five", b"a", lambda txn: (Amount(5), [])),
    ):
        reader.put(ReceivedRequest(client, OPERATIONS["stats"], rid, GetStats()), read)
    reader.stop()
    thread = threading.Thread(target=reader.run, daemon=True)
    thread.start()
    thread.join(60)
    assert replies.put_[0] == ("one", Amount(0), [b"frame"])
    assert replies.put_[4] == ("five", Amount(5), [])
    kinds = [type(reply).__name__ for _, reply, _ in replies.put_[1:4]]
    assert kinds == ["BufferError_", "NotFound", "LimitExceeded"] and replies.woken == 5

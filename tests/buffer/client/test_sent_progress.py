"""An actor sends the new turns only, and all of them if the service lacks what they add to."""

import asyncio
from collections import Counter
from contextlib import suppress

from buffer.client.sent_progress import SentProgress
from r3l import codec
from r3l.errors import BufferUnavailable, ProgressGap
from tests.buffer.fakes import finished


class Client:
    """Remembers what is sent. Answers with the next of `replies`: raised if it is an error."""

    def __init__(self, *replies):
        self.replies, self.sent = list(replies), []

    async def put_partial(self, group_id, actor, result, *, since=None, serial=0):
        self.sent.append((result, since, serial))
        reply = self.replies.pop(0) if self.replies else 1
        if isinstance(reply, Exception):
            raise reply
        return reply


def sent(client, *results):
    """Sends results one after the other. Returns the progress and the counts of the events."""
    counts = Counter()

    async def scenario():
        progress = SentProgress(counts)
        for result in results:
            with suppress(BufferUnavailable):
                await progress.put(client, "g", "a", result)
        return progress

    return asyncio.run(scenario()), counts


def test_later_progress_adds_to_what_was_acknowledged_of_its_slot():
    one, two, other = finished(length=9), finished(length=12), finished(1, length=5)
    client = Client()
    sent(client, one, other, two)
    assert client.sent == [(one, None, 1), (other, None, 2), (two, codec.encode(one), 3)]


def test_what_was_not_acknowledged_is_nothing_to_add_to():
    one, two, three = (finished(length=length) for length in (9, 12, 15))
    client = Client(1, BufferUnavailable("no reply"))
    sent(client, one, two, three)
    assert client.sent[2] == (three, codec.encode(one), 3)


def test_a_gap_is_counted_and_mended_with_the_whole_progress():
    one, two, three = (finished(length=length) for length in (9, 12, 15))
    client = Client(1, ProgressGap("not stored"))
    _, counts = sent(client, one, two, three)
    assert client.sent[1:] == [
        (two, codec.encode(one), 2), (two, None, 3), (three, codec.encode(two), 4)
    ]  # fmt: skip
    assert counts == {"resent": 1}


def test_a_resolved_slot_is_forgotten():
    one, two = finished(length=9), finished(length=12)
    client = Client(1, 0)
    progress, _ = sent(client, one, two)
    assert progress._known == {}

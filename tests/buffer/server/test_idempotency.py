"""A request sent again after a lost reply is replied to as the first time, and carried out once."""

import threading

import pytest
import zmq

from buffer import BufferClient
from buffer.server import idempotency
from buffer.storage.store import Store
from buffer.tools.verify import verify
from buffer.wire.operations import Amount
from r3l import codec
from r3l.records import GroupPlan
from tests.buffer.fakes import calls

pytestmark = pytest.mark.system

OPTIONS = ("learner.groups_per_step=2", "buffer.retention.grace_s=0")
LOSES = """
import os
from buffer.server.replies import Replies
send = Replies.send
def lose(self, *reply):
    try:
        os.remove({mark!r})
    except FileNotFoundError:
        send(self, *reply)
    else:
        {loss}
Replies.send = lose
"""


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """A file; while it is there, the service that is started with LOSES loses its next reply."""
    monkeypatch.setattr("buffer.client.clients.FIRST_TRY_S", 0.3)
    return tmp_path / "lose"


def _lives(client, tasks, done, call):
    """Every operation whose reply counts what it did; `call` asks in the presence of a loss."""
    assert call(lambda: client.add_tasks(tasks(5))) == 5
    assert call(lambda: client.add_tasks(tasks(7))) == 2
    for step in range(1, 4):
        for _ in range(2):
            group = client.lease("a", step - 1, GroupPlan(1)).group_id
            client.put(group, "a", done(version=step - 1))
        draw = client.draw(2, step - 1)
        if step < 3:
            client.commit(draw.draw_id, step, step)
    assert call(client.release_draws) == 2
    assert call(lambda: client.set_version(1)) == 2
    client.commit(client.draw(2, 1).draw_id, 2, 2)
    stats = client.stats()
    assert (stats.rewound, stats.tasks) == (2, 7)


def _ends_well(served):
    assert served.stop() == 0
    store = Store(served.folder, read_only=True)
    assert verify(store) == []
    store.close()


def test_a_lost_reply_is_sent_again(serve, tasks, done, mark):
    served = serve("tcp://127.0.0.1:0", *OPTIONS, change=LOSES.format(mark=str(mark), loss="pass"))

    def call(ask):
        mark.touch()
        reply = ask()
        assert not mark.exists()
        return reply

    with BufferClient(served.endpoint, timeout_s=30) as client:
        _lives(client, tasks, done, call)
    _ends_well(served)


def test_a_reply_lost_with_the_service_comes_from_the_next_service(serve, tasks, done, mark):
    """The service ends between its commit and its reply, every time."""
    change = LOSES.format(mark=str(mark), loss="os._exit(9)")
    served = [serve("tcp://127.0.0.1:0", *OPTIONS, change=change)]

    def call(ask):
        replies = []
        mark.touch()
        thread = threading.Thread(target=lambda: replies.append(ask()), daemon=True)
        thread.start()
        assert served[-1].process.wait(timeout=120) == 9
        served.append(serve(served[-1].endpoint, *OPTIONS, change=change))
        thread.join(timeout=60)
        return replies[0]

    with BufferClient(served[0].endpoint, timeout_s=60) as client:
        _lives(client, tasks, done, call)
    _ends_well(served[-1])


def test_a_late_duplicate_of_a_request_changes_nothing(serve, tasks, done):
    """What lay in the network while its sender asked again, and went on."""
    served = serve("tcp://127.0.0.1:0", *OPTIONS)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(served.endpoint)

    def ask(frames):
        dealer.send_multipart(frames)
        assert dealer.poll(60_000)
        return codec.decode(Amount, dealer.recv_multipart()[1]).count

    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(4))
        back, released = (
            call.frames(rid)
            for rid, call in (("back", calls.set_version(0)), ("give", calls.release_draws()))
        )
        assert ask(back) == ask(released) == 0
        for step in (1, 2):
            group = client.lease("a", step - 1, GroupPlan(1)).group_id
            client.put(group, "a", done(version=step - 1))
            draw = client.draw(1, step - 1)
            if step == 1:
                client.commit(draw.draw_id, 1, 1)
        assert ask(back) == ask(released) == 0
        stats = client.stats()
        assert (stats.learner_version, stats.train["trained"], stats.train["drawn"]) == (1, 1, 1)
        for number in range(2 * idempotency.KEPT):
            assert ask(calls.add_tasks(tasks(1)).frames(f"t{number}")) == 0
    context.destroy(linger=0)
    _ends_well(served)


def test_a_request_sent_twice_is_carried_out_once(client, raw, tasks, done):
    client.add_tasks(tasks(5))
    lease = calls.lease("a", 0, GroupPlan(1)).frames("lease-1")
    raw(*lease), raw(*lease)
    assert client.stats().train["leased"] == 1
    put = calls.put("g0000000001", "a", done()).frames("put-1")
    raw(*put), raw(*put)
    draw = calls.draw(1, 0).frames("draw-1")
    raw(*draw), raw(*draw)
    stats = client.stats()
    assert (stats.puts, stats.draws, stats.train["drawn"]) == (1, 1, 1)

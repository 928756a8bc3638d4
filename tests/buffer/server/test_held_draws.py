"""Draws that wait: their clients are told to ask again, and only who asks is given groups."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import zmq

from buffer import BufferClient
from buffer.server import held_draws
from buffer.server.handlers import WriteHandlers
from buffer.wire import messages
from r3l.errors import Conflict
from r3l.records import GroupPlan
from tests.buffer.fakes import calls, until

WAITS = """
import sys
from buffer import BufferClient
client = BufferClient(sys.argv[1])
client.stats()
print("waits", flush=True)
client.draw(1, 0, consumer="notebook", wait_s=600.0)
"""


@pytest.fixture
def handlers(desk):
    return WriteHandlers(desk.store, Counter())


def _request(call, rid="r", waited_s=0.0):
    header, *rest = call.frames(rid, waited_s)
    return messages.read_request(b"client", messages.read_header([header]), rest)


def _told(desk, handlers, *, last=False):
    """The ids of the draws whose clients are told to ask again."""
    taken = handlers.held.take(desk.index, desk.config.buffer.sampler, last=last)
    return [request.rid for request in taken]


def _ask(desk, handlers, call, rid="r", waited_s=0.0):
    return desk.do(handlers.handle, _request(call, rid, waited_s))


def test_a_waiting_draw_is_carried_out_when_its_client_asks_again(desk, handlers, tasks):
    desk.add(tasks(3))
    draw, before = calls.draw(1, 0, wait_s=9.0), time.monotonic()
    assert _ask(desk, handlers, draw) is None
    assert before + 9.0 <= handlers.held.until <= time.monotonic() + 9.0
    assert _told(desk, handlers) == []
    group = desk.complete()
    assert _told(desk, handlers) == ["r"] and _told(desk, handlers) == []
    assert desk.row(group).state == "complete"
    read = _ask(desk, handlers, draw)
    with desk.store.read() as txn:
        head, groups = read(txn)
    assert head.draw_id == 1 and head.now[0].state == "drawn" and len(groups) == 1


def test_a_draw_waits_on_if_another_was_faster(desk, handlers, tasks):
    desk.add(tasks(3))
    draw = calls.draw(1, 0, wait_s=60.0)
    for rid in ("first", "second"):
        assert _ask(desk, handlers, draw, rid) is None
    desk.complete()
    assert _told(desk, handlers) == ["first", "second"]
    assert _ask(desk, handlers, draw, "second") is not None
    assert _ask(desk, handlers, draw, "first") is None
    desk.complete()
    assert _told(desk, handlers) == ["first"]


def test_a_waiting_draw_that_became_impossible_is_refused_by_itself(desk, handlers, tasks):
    desk.add(tasks(3))
    desk.set_version(4)
    draw = calls.draw(1, 5, wait_s=60.0)
    assert _ask(desk, handlers, draw) is None
    assert _ask(desk, handlers, calls.set_version(2), "back").count == 0
    assert _told(desk, handlers) == ["r"]
    error = _ask(desk, handlers, draw)
    assert isinstance(error, Conflict) and "draw at version 5" in str(error)
    assert _told(desk, handlers, last=True) == []


def test_a_copy_that_comes_after_a_draw_ended_without_groups_takes_none(
    desk, handlers, tasks, monkeypatch
):
    monkeypatch.setattr(held_draws, "ENDED", 2)
    desk.add(tasks(3))
    draw = calls.draw(1, 0, wait_s=2.0)
    assert _ask(desk, handlers, draw, waited_s=0.5) is None
    assert "0 of 1 groups" in _ask(desk, handlers, draw, waited_s=2.0).reason
    assert _told(desk, handlers, last=True) == []
    desk.complete()
    assert "1 of 1 groups" in _ask(desk, handlers, draw, waited_s=0.0).reason
    assert desk.index.draws == {}
    for rid in ("another", "a third"):
        handlers.held.hold(_request(calls.draw(1, 0), rid))
    assert handlers.held.begin(_request(draw))


def test_ten_thousand_draws_of_clients_that_left_are_told_once_and_forgotten(
    desk, handlers, tasks, monkeypatch
):
    desk.add(tasks(3))
    draw = calls.draw(2, 0, wait_s=3600.0)
    for number in range(10_000):
        handlers.held.hold(_request(draw, f"r{number}"))
    group = desk.complete()
    assert _told(desk, handlers) == []
    later = time.monotonic() + held_draws.HELD_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert len(_told(desk, handlers)) == 10_000 and handlers.held.until == float("inf")
    assert desk.row(group).state == "complete" and desk.index.draws == {}


@pytest.mark.system
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_notebook_takes_no_groups(serve, tasks, done, end):
    served = serve("tcp://127.0.0.1:0", "buffer.max_staleness=0", "learner.groups_per_step=1")
    notebook = subprocess.Popen(
        [sys.executable, "-c", WAITS, served.endpoint], stdout=subprocess.PIPE, text=True
    )
    try:
        assert notebook.stdout.readline() == "waits\n"
        time.sleep(1.0)
        os.kill(notebook.pid, end)
        with BufferClient(served.endpoint) as learner:
            learner.add_tasks(tasks(9))
            learner.put(learner.lease("a", 0, GroupPlan(1)).group_id, "a", done())
            assert learner.stats().drawn_by == {}
            assert len(learner.draw(1, 0).groups) == 1
    finally:
        notebook.kill()
        notebook.wait()
        notebook.stdout.close()


@pytest.mark.system
def test_a_learner_goes_back_beside_a_notebook_that_waits(serve, tasks, done):
    served, ends = serve("tcp://127.0.0.1:0", "learner.groups_per_step=2"), []

    def wait():
        with BufferClient(served.endpoint) as notebook:
            try:
                notebook.draw(2, 5, consumer="notebook", wait_s=600.0)
            except Conflict as error:
                ends.append(str(error))

    with BufferClient(served.endpoint) as learner:
        learner.add_tasks(tasks(9))
        for step in range(1, 5):
            for _ in range(2):
                group = learner.lease("a", step - 1, GroupPlan(1)).group_id
                learner.put(group, "a", done(version=step - 1))
            learner.commit(learner.draw(2, step - 1).draw_id, step, step)
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        time.sleep(1.0)
        assert learner.set_version(3) == 2
        waiting.join(60)
        assert learner.stats().learner_version == 3
        assert len(ends) == 1 and "draw at version 5: the learner is at version 3" in ends[0]
        assert len(learner.draw(2, 3).groups) == 2


@pytest.mark.system
def test_clients_that_leave_with_thousands_of_waiting_draws_take_no_groups(serve, tasks, done):
    served, context = serve("tcp://127.0.0.1:0", "learner.groups_per_step=1"), zmq.Context()
    draw, stats = calls.draw(1, 0, consumer="crowd", wait_s=600.0), calls.stats()
    for number in range(40):
        client = context.socket(zmq.DEALER)
        client.connect(served.endpoint)
        for of_it in range(messages.REQUESTS_IN_FLIGHT - 1):
            client.send_multipart(draw.frames(f"{number}-{of_it}", 0.0))
        client.send_multipart(stats.frames(f"{number}", 0.0))
        assert client.poll(60_000) and messages.reply_id(client.recv_multipart()) == f"{number}"
        client.close(linger=0)
    context.term()
    with BufferClient(served.endpoint, timeout_s=60) as learner:
        learner.add_tasks(tasks(9))
        learner.put(learner.lease("a", 0, GroupPlan(1)).group_id, "a", done())
        until(lambda: learner.stats().undelivered == 40 * (messages.REQUESTS_IN_FLIGHT - 1))
        assert learner.stats().drawn_by == {} and len(learner.draw(1, 0).groups) == 1

"""Peers that are many, slow, silent or strange harm only themselves."""

import asyncio
import socket
import time

import msgspec
import numpy as np
import psutil
import pytest
import zmq
from msgspec.structs import replace

from buffer import AsyncBufferClient, BufferClient
from buffer.client import calls
from buffer.groups import results
from buffer.server.replies import UNSENT_LIMIT
from buffer.wire.access import ZAP_DOMAIN, _protect
from buffer.wire.curve_keys import ClientKeys, ServiceKeys, generate, load, present
from buffer.wire.messages import CREDIT
from r3l import codec
from r3l.errors import BufferUnavailable, LimitExceeded, RecordError, UserError
from r3l.records import GroupPlan, SlotResult

pytestmark = pytest.mark.system

GREETING = b"\xff" + b"\0" * 7 + b"\1\x7f\3\0NULL" + b"\0" * 48  # of ZMTP 3.0


def _until(happened, seconds=30):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_who_comes_when_all_places_are_taken_is_turned_away_until_one_is_free(serve):
    served = serve("tcp://127.0.0.1:0", "--connections", 4)
    clients = [BufferClient(served.endpoint) for _ in range(4)]
    for client in clients:
        client.stats()
    with BufferClient(served.endpoint, timeout_s=1.0) as late:
        with pytest.raises(BufferUnavailable):
            late.stats()
        assert clients[0].stats().refused["too_many_connections"] >= 1
        clients[3].close()
        late.timeout_s = 30
        assert late.stats().puts == 0
    for client in clients[:3]:
        client.close()


def test_a_client_that_takes_what_it_asks_for_is_given_as_much_as_it_asks_for(serve, tasks, done):
    served = serve()
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(1))
        group = client.lease("a", 0, GroupPlan(1)).group_id
        client.put(group, "a", done(length=600_000))
        taken = 0
        while taken < 1.5 * UNSENT_LIMIT:
            (got,) = client.get([group])
            taken += 9 * len(got.trajectories[0].token_ids)
        assert client.stats().refused == {}


def test_silent_connections_take_no_places_and_do_not_stay(serve):
    served = serve("tcp://127.0.0.1:0", "--connections", 4)
    process = psutil.Process(served.process.pid)
    host, port = served.endpoint.removeprefix("tcp://").split(":")
    files = process.num_fds()
    silent = [socket.create_connection((host, int(port))) for _ in range(300)]
    for number, stranger in enumerate(silent):
        stranger.sendall(GREETING[: (0, 1, 12, 64)[number % 4]])
    _until(lambda: process.num_fds() >= files + 300)
    clients = [BufferClient(served.endpoint, timeout_s=5) for _ in range(4)]
    for client in clients:
        assert client.stats().refused == {}
    with BufferClient(served.endpoint, timeout_s=1) as late, pytest.raises(BufferUnavailable):
        late.stats()  # the places are taken by those who said who they are
    _until(lambda: process.num_fds() < files + 30)  # four clients, and what the service opened
    for client in clients:
        client.close()
    for stranger in silent:
        stranger.close()


TWENTY_TIMES_AS_SOON = """
import zmq
wait = {zmq.HEARTBEAT_IVL: 100, zmq.HEARTBEAT_TIMEOUT: 1000}
plain = zmq.Socket.set
zmq.Socket.set = lambda self, option, value: plain(self, option, wait.get(option, value))
"""


def test_a_client_whose_machine_is_gone_loses_its_place(serve):
    served = serve("tcp://127.0.0.1:0", "--connections", 1, change=TWENTY_TIMES_AS_SOON)
    host, port = served.endpoint.removeprefix("tcp://").split(":")
    ready = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    with socket.create_connection((host, int(port)), timeout=30) as gone:
        gone.sendall(GREETING + b"\x04" + bytes([len(ready)]) + ready)
        heard = b""
        while b"\x04PING" not in heard:  # now it has the only place, and says no more
            heard += gone.recv(1 << 16)
        with BufferClient(served.endpoint, timeout_s=30) as client:
            assert client.stats().puts == 0
        while gone.recv(1 << 16):
            pass  # until its connection is closed


def test_connections_that_say_nothing_or_nonsense_do_not_stop_the_others(serve):
    served = serve()
    host, port = served.endpoint.removeprefix("tcp://").split(":")
    with BufferClient(served.endpoint) as client:
        strangers = [socket.create_connection((host, int(port))) for _ in range(100)]
        for number, stranger in enumerate(strangers):
            with_length = GREETING + b"\x06" + (2 << 30).to_bytes(8, "big")  # a 2 GB command
            stranger.sendall(
                (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04.", with_length)[number % 4]
            )
        client.stats()
        memory = psutil.Process(served.process.pid).memory_info().rss
        assert memory < 300 << 20
        for stranger in strangers:
            stranger.close()
        assert client.stats().puts == 0


def test_a_client_that_asks_and_never_takes_is_given_no_more_than_its_share(serve, tasks, done):
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
            stuck.send_multipart(calls.get(groups).frames(f"r{number}", 0.0))
        _until(lambda: client.stats().refused.get("LimitExceeded", 0) > 20)
        assert len(client.get(groups[:1])) == 1
        assert process.memory_info().rss - before < 3 * UNSENT_LIMIT + (64 << 20)
        context.destroy(linger=0)


def test_a_service_whose_access_thread_is_dead_accepts_no_connection(tmp_path):
    service, client = (
        load(kind, path)
        for kind, path in zip((ServiceKeys, ClientKeys), generate(tmp_path), strict=True)
    )
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    _protect(router, service)
    assert router.get(zmq.ZAP_DOMAIN).strip(b"\0") == ZAP_DOMAIN
    present(dealer, client)
    dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    dealer.send(b"hello")
    assert not router.poll(1000)
    context.destroy(linger=0)


def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused_by_both_figures(serve, tasks, done):
    served = serve()
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(1))
        group = client.lease("a", 0, GroupPlan(1)).group_id
        call = calls.put(group, "a", done())
        good = np.arange(8, dtype="<i4").tobytes()
        whole = bytes(call.arguments.results[0])
        bad = whole.replace(b"\xc4\x20" + good, b"\xc4\x1c" + good[:28])
        assert len(bad) == len(whole) - 4
        arguments = replace(call.arguments, results=(msgspec.Raw(bad),))
        with pytest.raises(RecordError, match=r"trajectory\.token_ids"):
            client._ask(calls.Call("put", arguments))
        assert set(client.stats().refused) == {"RecordError"}


def test_a_group_larger_than_the_limit_is_refused_and_what_was_accepted_stays(
    desk, tasks, done, monkeypatch
):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, done("base", 0, length=900_000))
    with pytest.raises(LimitExceeded, match=r"group g0000000001: \d+ bytes; limit \d+"):
        desk.put(group, done("base", 1, length=900_000))
    assert desk.row(group).resolved == (("base", 0),)
    monkeypatch.setattr(results, "_GROUP_LIMIT", desk.row(group).nbytes)
    desk.resolve(group, "base", 1, "x" * results.CAUSE_LIMIT)  # a failure always has room
    desk.put(group, SlotResult("base", 2, "failed", cause="too_large"))
    assert desk.row(group).state == "complete"
    assert desk.row(group).nbytes < codec.RECORD_LIMIT


def test_a_client_with_more_requests_than_a_client_may_have_is_patient_not_refused(serve):
    served = serve()

    async def ask() -> list[object]:
        async with AsyncBufferClient(served.endpoint) as client:
            draws = (client.draw(1, 0, consumer=f"c{n}", wait_s=0.2) for n in range(2 * CREDIT))
            return await asyncio.gather(*draws)

    assert asyncio.run(ask()) == [None] * (2 * CREDIT)


def test_more_connections_than_the_system_allows_are_refused_at_once(serve, tmp_path):
    from buffer.cli import _allow_files

    with pytest.raises(UserError, match="open files"):
        _allow_files(1 << 40)

"""Who may connect, and how many: strangers, silent peers and lost machines harm only themselves."""

import socket

import psutil
import pytest
import zmq

from buffer import BufferClient
from buffer.wire.access import ZAP_DOMAIN, _protect
from buffer.wire.curve_keys import ClientKeys, ServiceKeys, generate, give_keys, load
from r3l.errors import BufferUnavailable
from tests.buffer.fakes import until

pytestmark = pytest.mark.system


GREETING = b"\xff" + b"\0" * 7 + b"\1\x7f\3\0NULL" + b"\0" * 48  # of ZMTP 3.0
MOST = "import buffer.server.service as service\nservice.CONNECTIONS = {}\n"


def test_a_client_beyond_the_limit_is_refused_until_a_place_is_free(serve):
    served = serve(change=MOST.format(4))
    clients = [BufferClient(served.endpoint) for _ in range(4)]
    for client in clients:
        assert client.stats().full_ago_s is None
    with BufferClient(served.endpoint, timeout_s=1.0) as late:
        with pytest.raises(BufferUnavailable, match="has no place for another client; end") as lost:
            late.stats()
        assert lost.value.facts["refused"].startswith("it has no place for another client")
        until(lambda: clients[0].stats().refused.get("too_many_connections", 0) >= 1)
        clients[3].close()
        late.timeout_s = 30
        found = late.stats()
        assert found.puts == 0 and found.full_ago_s is not None
    for client in clients[:3]:
        client.close()


def test_silent_connections_take_no_places_and_are_closed(serve):
    served = serve(change=MOST.format(4))
    process = psutil.Process(served.process.pid)
    host, port = served.endpoint.removeprefix("tcp://").split(":")
    files = process.num_fds()
    silent = [socket.create_connection((host, int(port))) for _ in range(300)]
    for number, stranger in enumerate(silent):
        stranger.sendall(GREETING[: (0, 1, 12, 64)[number % 4]])
    until(lambda: process.num_fds() >= files + 300)
    clients = [BufferClient(served.endpoint, timeout_s=60) for _ in range(4)]
    for client in clients:
        assert client.stats().refused == {}
    with BufferClient(served.endpoint, timeout_s=1) as late, pytest.raises(BufferUnavailable):
        late.stats()  # the places are taken by those who said who they are
    until(lambda: process.num_fds() < files + 30)  # four clients, and what the service opened
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
    served = serve(change=MOST.format(1) + TWENTY_TIMES_AS_SOON)
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


def test_silent_or_malformed_connections_do_not_stop_the_others(serve):
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


def test_a_service_whose_access_thread_is_dead_accepts_no_connection(tmp_path):
    service, client = (
        load(kind, path)
        for kind, path in zip((ServiceKeys, ClientKeys), generate(tmp_path), strict=False)
    )
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    _protect(router, service)
    assert router.get(zmq.ZAP_DOMAIN).strip(b"\0") == ZAP_DOMAIN
    give_keys(dealer, client)
    dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    dealer.send(b"hello")
    assert not router.poll(1000)
    context.destroy(linger=0)

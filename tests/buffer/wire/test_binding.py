"""Binding: a port that is taken is asked for again before a service gives up."""

import socket
import threading

import pytest
import zmq

from buffer.wire import binding
from buffer.wire.binding import bind
from r3l.errors import UserError


@pytest.fixture
def router():
    context = zmq.Context()
    yield context.socket(zmq.ROUTER)
    context.destroy(linger=0)


@pytest.fixture
def held():
    """A port that a connection of another program was given, and that connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        yield connection
        connection.close()


def test_a_port_that_becomes_free_is_taken(router, held):
    address = f"tcp://127.0.0.1:{held.getsockname()[1]}"
    with pytest.raises(zmq.ZMQError):
        router.bind(address)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no TIME_WAIT
    threading.Timer(0.5, held.close).start()
    assert bind(router, address, "bind") == address


def test_a_port_that_stays_taken_is_named(router, held, monkeypatch):
    monkeypatch.setattr(binding, "BIND_S", 0.3)
    with pytest.raises(UserError, match=r"^bind tcp://127\.0\.0\.1:\d+: cannot listen \(Address "):
        bind(router, f"tcp://127.0.0.1:{held.getsockname()[1]}", "bind")


def test_an_address_of_another_machine_is_refused_at_once(router, monkeypatch):
    monkeypatch.setattr(binding.time, "sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(UserError, match=r"weights tcp://192\.0\.2\.1:0: cannot listen"):
        bind(router, "tcp://192.0.2.1:0", "weights")

"""Frames of a message through real sockets of one process, and ports that are in use."""

import re
import socket
import threading
from pathlib import Path

import pytest
import zmq

from buffer.wire import sockets
from buffer.wire.sockets import LARGE, bind, has_message, new_socket, receive_message, send_message
from r3l.errors import UserError


@pytest.fixture
def pair():
    """Two connected sockets; the first holds one message for a peer that does not take any."""
    with zmq.Context() as context:
        sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        sender.set(zmq.SNDHWM, 1)
        receiver.set(zmq.RCVHWM, 1)
        receiver.bind("inproc://frames")
        sender.connect("inproc://frames")
        yield sender, receiver
        sender.close(linger=0)
        receiver.close(linger=0)


def test_a_message_arrives_frame_by_frame_and_only_its_large_frames_are_not_copied(pair):
    sender, receiver = pair
    frames = [b"header", b"", b"x" * (LARGE - 1), memoryview(b"y" * LARGE)]
    assert not has_message(receiver)
    send_message(sender, frames)
    assert has_message(receiver)
    received = receive_message(receiver)
    assert [bytes(frame) for frame in received] == [bytes(frame) for frame in frames]
    assert [type(frame) for frame in received] == [bytes, bytes, bytes, memoryview]
    assert not has_message(receiver)


def test_a_message_that_cannot_be_sent_is_an_error_at_once(pair):
    sender, _ = pair
    with pytest.raises(zmq.Again):
        for _ in range(10):
            send_message(sender, [b"a", b"b"])


def test_a_message_that_has_not_arrived_is_an_error_at_once(pair):
    _, receiver = pair
    with pytest.raises(zmq.Again):
        receive_message(receiver)


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
    monkeypatch.setattr(sockets, "BIND_S", 0.3)
    with pytest.raises(UserError, match=r"^bind tcp://127\.0\.0\.1:\d+: cannot listen"):
        bind(router, f"tcp://127.0.0.1:{held.getsockname()[1]}", "bind")


def test_an_address_of_another_machine_is_refused_at_once(router, monkeypatch):
    monkeypatch.setattr(sockets.time, "sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(UserError, match=r"weights tcp://192\.0\.2\.1:0: cannot listen"):
        bind(router, "tcp://192.0.2.1:0", "weights")


def test_every_socket_of_the_project_is_made_where_no_call_waits_for_ever() -> None:
    root, makers = Path(__file__).parents[3], list[str]()
    for package in ("buffer", "actors", "learner", "launch"):
        for path in (root / package).rglob("*.py"):
            if re.search(r"ontext\.socket\(|zmq\.Socket\(", path.read_text("utf-8")):
                makers.append(path.name)
    assert set(makers) <= {"sockets.py"}
    context = zmq.Context()
    lonely = new_socket(context, zmq.DEALER, SNDTIMEO=10, RCVTIMEO=10)
    for call in (lambda: lonely.send(b""), lonely.recv):
        with pytest.raises(zmq.Again):
            call()
    context.destroy(linger=0)

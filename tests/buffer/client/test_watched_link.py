"""Whether bytes move on a client's connection, on real sockets."""

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from buffer.client.watched_link import RECENT_S, Link
from tests.buffer.fakes import until


@pytest.fixture
def pair() -> Iterator[tuple[Any, Any, Link]]:
    """A service's socket, a client's, and the client's link."""
    context = zmq.Context()
    service, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    link = Link(client)
    client.connect(f"tcp://127.0.0.1:{service.bind_to_random_port('tcp://127.0.0.1')}")
    yield service, client, link
    link.close()
    context.destroy(linger=0)


def test_bulk_that_is_sent_or_arrives_moves_and_little_does_not(pair: Any) -> None:
    service, client, link = pair
    client.send(b"little")
    name, _ = service.recv_multipart()
    assert not link.moves(100.0) and not link.arrives(100.0)
    client.send(bytes(50_000))
    service.recv_multipart()
    until(lambda: link.moves(200.0))
    assert not link.arrives(200.0) and not link.moves(201.0 + RECENT_S)

    service.send_multipart([name, bytes(50_000)])
    until(lambda: link.arrives(300.0))
    assert not link.arrives(301.0 + RECENT_S), "nothing came since"
    client.recv()
    link.note_message()
    service.send_multipart([name, bytes(50_000)])
    assert client.poll(10_000)
    assert not link.arrives(400.0), "a message came whole since the last look"


def test_a_connection_that_is_gone_does_not_move(pair: Any) -> None:
    service, client, link = pair
    client.send(bytes(50_000))
    service.recv_multipart()
    service.close(linger=0)
    until(lambda: (not link.moves(100.0) and link._connection < 0) or not link.moves(900.0))
    assert not link.moves(2000.0) and not link.arrives(2000.0)

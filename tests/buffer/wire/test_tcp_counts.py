"""The kernel's counts of a connection."""

import socket

import pytest

from buffer.wire.tcp_counts import tcp_counts
from tests.buffer.fakes import until


def test_bytes_are_counted_on_both_sides_and_a_closed_connection_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = socket.create_connection(listening.getsockname())
        taker, _ = listening.accept()
        sender.sendall(bytes(70_000))
        assert len(taker.recv(70_000, socket.MSG_WAITALL)) == 70_000
        assert tcp_counts(taker.fileno()).received == 70_000
        until(lambda: tcp_counts(sender.fileno()).acked >= 70_000)
        assert tcp_counts(sender.fileno()).sent == 70_000
        number = sender.fileno()
        sender.close()
        taker.close()
    with pytest.raises(OSError):
        tcp_counts(number)

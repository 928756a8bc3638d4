"""Asks the kernel how many bytes a TCP connection of libzmq has moved (TCP_INFO, Linux 4.19)."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_ACKED, _RECEIVED, _SENT, _TCP_INFO = 120, 128, 200, 208  # offsets in struct tcp_info, and its size
_COUNT = struct.Struct("=Q")


class TcpCounts(NamedTuple):
    """Bytes since the connection began. `acked`: the sent bytes that the peer's kernel has
    received."""

    received: int
    sent: int
    acked: int


def tcp_counts(number: int) -> TcpCounts:
    """Returns the counts of the connection with this file descriptor. Raises OSError if it is
    closed, or if the system does not have them."""
    with borrow_socket(number) as found:
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO)
    if len(info) < _TCP_INFO:
        raise OSError(f"TCP_INFO has only {len(info)} bytes")
    return TcpCounts(*(_COUNT.unpack_from(info, at)[0] for at in (_RECEIVED, _SENT, _ACKED)))


@contextmanager
def borrow_socket(number: int) -> Iterator[socket.socket]:
    """Borrows a file descriptor from libzmq as a Python socket. Raises OSError if the descriptor is
    closed. If libzmq closed the connection, the descriptor may now belong to another connection."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=number)
    try:
        yield found
    finally:
        found.detach()

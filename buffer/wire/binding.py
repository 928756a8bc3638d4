"""Binding a service's socket to its address, which may still be taken for a moment.

A service that is started again needs the port that its clients know. Another program may hold it
for a short time: any connection that was opened meanwhile may have been given that port.
"""

from __future__ import annotations

import time
from typing import Any

import zmq

from r3l.errors import UserError

BIND_S = 10.0  # as long as a port that is taken is asked for again
AGAIN_S = 0.1


def bind(socket: Any, address: str, what: str) -> str:
    """Bind a ZeroMQ socket; returns the address with the port that was taken.

    Raises UserError that names `what` if it cannot be bound, or is still in use after BIND_S.
    """
    end = time.monotonic() + BIND_S
    while True:
        try:
            socket.bind(address)
            return str(socket.get_string(zmq.LAST_ENDPOINT))
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > end:
                raise UserError(
                    f"{what} {address}: cannot listen ({error.strerror}); choose a free port"
                ) from None
        time.sleep(AGAIN_S)

"""Makes and binds ZeroMQ sockets, and sends and receives messages frame by frame."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from r3l.errors import UserError

LARGE = 16 << 10  # bytes from which a frame is not copied when it is sent or received
FRAMES_LIMIT = 16  # of a request; it has 2
BIND_S = 10.0  # how long to retry a port in use: a restarted service keeps its port
BIND_RETRY_S = 0.1
CALL_MS = 1000
UNKNOWN_KEY, NO_PLACE = 400, 500  # why a connection is refused, as a status of ZAP
Frame = bytes | memoryview

# Plain numbers, because calculating with pyzmq's flags takes as long as sending a frame.
_NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)


def new_socket(context: Any, kind: int, **options: int) -> Any:
    """Makes a socket with ZeroMQ `options`. A call that takes longer than CALL_MS raises zmq.Again.
    The caller must then replace the socket."""
    # After damaged bytes, libzmq may never reconnect a socket (libzmq#4196).
    socket = context.socket(kind)
    for name, value in ({"LINGER": 0, "SNDTIMEO": CALL_MS, "RCVTIMEO": CALL_MS} | options).items():
        socket.set(getattr(zmq, name), value)
    return socket


def bind(socket: Any, address: str, what: str) -> str:
    """Binds a socket and returns the full address. If the port is in use, retries for BIND_S. On
    failure, raises a UserError that names `what`."""
    end = time.monotonic() + BIND_S
    socket.set(zmq.IPV6, "[" in address)
    while True:
        try:
            socket.bind(address)
            return str(socket.get_string(zmq.LAST_ENDPOINT))
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > end:
                raise UserError(
                    f"{what} {address}: cannot listen ({error.strerror}); choose a free port"
                ) from None
        time.sleep(BIND_RETRY_S)


def receive_message(socket: Any) -> list[Frame]:
    """Receives a message that has already arrived. Large frames stay in ZeroMQ's memory."""
    return _receive(socket, sys.maxsize)[0]


@dataclass(frozen=True)
class Received:
    """A message to a ROUTER. `client`: the sender's routing id. `role`: as in buffer.wire.access.
    `connection`: a file descriptor. `frames`: the first FRAMES_LIMIT frames."""

    client: bytes
    role: str
    connection: int
    frames: list[Frame]


def receive_from_peer(router: Any) -> Received:
    """Receives a message that has already arrived at a ROUTER."""
    (client, *frames), last = _receive(router, 1 + FRAMES_LIMIT)
    return Received(bytes(client), last.get("User-Id"), last.get(zmq.SRCFD), frames)


def _receive(socket: Any, limit: int) -> tuple[list[Frame], Any]:
    """Receives a message. Returns its first `limit` frames, and its last frame as a zmq.Frame."""
    frames: list[Frame] = []
    more = True
    while more:
        frame = socket.recv(_NOW, copy=False)
        if len(frames) < limit:
            frames.append(frame.bytes if len(frame) < LARGE else frame.buffer)
        more = frame.more
    return frames, frame


def send_message(socket: Any, frames: Sequence[Frame]) -> None:
    """Sends copies of the frames as one message, without waiting. May raise zmq.ZMQError."""
    for frame in frames[:-1]:
        socket.send(frame, _NOW_AND_MORE)
    socket.send(frames[-1], _NOW)


def has_message(socket: Any) -> bool:
    return bool(socket.get(zmq.EVENTS) & _READABLE)

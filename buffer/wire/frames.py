"""Messages over ZeroMQ sockets, frame by frame."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq

LARGE = 16 << 10  # bytes from which a frame is not copied on its way in or out
FRAMES_LIMIT = 16  # of a request; it has 2
Frame = bytes | memoryview

# Plain numbers, because calculating with pyzmq's flags takes as long as sending a frame.
_NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)


def receive_message(socket: Any) -> list[Frame]:
    """A message that has arrived; its large frames stay where they are, in ZeroMQ's memory."""
    return _receive(socket, sys.maxsize)[0]


@dataclass(frozen=True)
class Received:
    """A message at a ROUTER: the sender's routing id, its role (buffer.wire.access), its
    connection's file descriptor, and the first FRAMES_LIMIT frames."""

    client: bytes
    role: str
    connection: int
    frames: list[Frame]


def receive_from_peer(router: Any) -> Received:
    """A message that has arrived at a ROUTER."""
    (client, *frames), last = _receive(router, 1 + FRAMES_LIMIT)
    return Received(bytes(client), last.get("User-Id"), last.get(zmq.SRCFD), frames)


def _receive(socket: Any, limit: int) -> tuple[list[Frame], Any]:
    """The first `limit` frames of a message, and its last one as ZeroMQ's."""
    frames: list[Frame] = []
    more = True
    while more:
        frame = socket.recv(_NOW, copy=False)
        if len(frames) < limit:
            frames.append(frame.bytes if len(frame) < LARGE else frame.buffer)
        more = frame.more
    return frames, frame


def send_message(socket: Any, frames: Sequence[Frame]) -> None:
    """Send copies of the frames as one message, or raise zmq.ZMQError at once."""
    for frame in frames[:-1]:
        socket.send(frame, _NOW_AND_MORE)
    socket.send(frames[-1], _NOW)


def has_message(socket: Any) -> bool:
    """Whether `receive_message` has something to receive."""
    return bool(socket.get(zmq.EVENTS) & _READABLE)

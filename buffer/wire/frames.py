"""Messages over ZeroMQ sockets, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

LARGE = 16 << 10  # bytes from which a frame is not copied on its way in or out
Frame = bytes | memoryview

# Plain numbers, because calculating with pyzmq's flags takes as long as sending a frame.
_NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)


def receive_message(socket: Any) -> list[Frame]:
    """A message that has arrived; its large frames stay where they are, in ZeroMQ's memory."""
    frames: list[Frame] = []
    more = True
    while more:
        frame = socket.recv(_NOW, copy=False)
        frames.append(frame.bytes if len(frame) < LARGE else frame.buffer)
        more = frame.more
    return frames


def send_message(socket: Any, frames: Sequence[Frame]) -> None:
    """Send copies of the frames as one message, or raise zmq.ZMQError at once."""
    for frame in frames[:-1]:
        socket.send(frame, _NOW_AND_MORE)
    socket.send(frames[-1], _NOW)


def has_message(socket: Any) -> bool:
    """Whether `receive_message` has something to receive."""
    return bool(socket.get(zmq.EVENTS) & _READABLE)

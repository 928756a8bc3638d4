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
    return _receive(socket)[0]


def receive_from_peer(router: Any) -> tuple[str, bytes, list[Frame]]:
    """A message that has arrived at a ROUTER: its sender's role (buffer.wire.access), the sender's
    routing id, and the frames."""
    (peer, *frames), last = _receive(router)
    return last.get("User-Id"), bytes(peer), frames


def _receive(socket: Any) -> tuple[list[Frame], Any]:
    """The frames of a message, and the last one as ZeroMQ's."""
    frames: list[Frame] = []
    more = True
    while more:
        frame = socket.recv(_NOW, copy=False)
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

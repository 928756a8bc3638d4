"""Records and messages as ZeroMQ frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from r3l.errors import RecordError

LARGE = 16 << 10  # bytes from which a frame is not copied on its way in or out


# Plain numbers, because calculating with pyzmq's flags takes as long as sending a frame.
_NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


_READABLE = int(zmq.POLLIN)


FRAME_BYTES = 4 << 20  # bytes of records in one frame, unless one alone is larger


Encoded = bytes | memoryview  # a record


Frame = bytes | memoryview  # of a message


def join_records(records: Sequence[Encoded]) -> list[bytes]:
    """Records back to back, in frames of about FRAME_BYTES."""
    frames: list[bytes] = []
    waiting: list[Encoded] = []
    size = 0
    for record in records:
        if waiting and size + len(record) > FRAME_BYTES:
            frames.append(b"".join(waiting))
            waiting, size = [], 0
        waiting.append(record)
        size += len(record)
    return [*frames, b"".join(waiting)] if waiting else frames


def split_records(frames: Sequence[Frame], sizes: Sequence[int]) -> list[memoryview]:
    """The records in frames, given the size of each; raises RecordError if they do not fit."""
    records: list[memoryview] = []
    rest, left = memoryview(b""), iter(frames)
    for size in sizes:
        if not len(rest):
            rest = memoryview(next(left, b""))
        if not 0 < size <= len(rest):
            raise RecordError(f"a record of {size} bytes where {len(rest)} are left")
        records.append(rest[:size])
        rest = rest[size:]
    if len(rest) or next(left, None) is not None:
        raise RecordError(f"more bytes than the {len(sizes)} records announced")
    return records


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

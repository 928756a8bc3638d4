"""Cuts a long answer into parts, and large records into frames.

    records ─► take: those of one part ─► cut: frames of at most FRAME_BYTES ═► joined: the records

A part has at most PART_BYTES, or one record that is larger. So the memory for an answer does not
depend on its length, and its receiver never waits long for the next reply.
"""

from collections.abc import Iterable, Sequence

from buffer.wire.sockets import Frame
from r3l.errors import RecordError

FRAME_BYTES = 8 << 20
PART_BYTES = 16 << 20


def cut(record: bytes) -> list[Frame]:
    """Returns the frames of an encoded record, which are views of it if there are several."""
    if len(record) <= FRAME_BYTES:
        return [record]
    view = memoryview(record)
    return [view[at : at + FRAME_BYTES] for at in range(0, len(view), FRAME_BYTES)]


def take(records: Iterable[bytes]) -> list[bytes]:
    """Takes records until they have PART_BYTES. Takes at least one, if there is one."""
    taken, size = list[bytes](), 0
    for record in records:
        taken.append(record)
        size += len(record)
        if size >= PART_BYTES:
            break
    return taken


def frames_of(records: Iterable[bytes]) -> tuple[tuple[int, ...], list[Frame]]:
    """Returns how many frames each record has, and all frames. An empty record has no frame."""
    several = [cut(record) if record else [] for record in records]
    return tuple(map(len, several)), [frame for each in several for frame in each]


def joined(counts: Sequence[int], frames: Sequence[Frame]) -> list[Frame]:
    """Returns the records whose frames have arrived. `counts`: how many frames each has. A record
    without frames is empty. Raises RecordError if the numbers differ."""
    if sum(counts) != len(frames):
        raise RecordError(f"reply: has {len(frames)} frames but announces {sum(counts)}")
    rest = iter(frames)
    several = ([next(rest) for _ in range(count)] for count in counts)
    return [each[0] if len(each) == 1 else b"".join(each) for each in several]

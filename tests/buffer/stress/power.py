"""Power loss, played out: what a recorded store may look like when the machine stops.

A process under recorder.c leaves a trace of its writes and syncs. A power loss at any point of
it leaves everything that was synced by then, and of every later write any of its 4 KiB pages,
old or new: nothing orders them. An image is one such file; what was acknowledged before that
point must be in it.
"""

import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = 4096
_HEAD = struct.Struct("<cdQQ")


@dataclass(frozen=True)
class Event:
    """A call that returned at `when`: W write, D durable write, S sync."""

    kind: str
    when: float
    offset: int = 0
    data: bytes = b""


@dataclass(frozen=True)
class Image:
    """The file after a power loss just before `when`."""

    when: float
    data: bytes


def build_recorder(folder: Path) -> Path | None:
    """The recorder, compiled; None where there is no C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    library = folder / "recorder.so"
    source = Path(__file__).with_name("recorder.c")
    command = [compiler, "-shared", "-fPIC", "-O2", "-w", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    return library


def recording(library: Path, trace: Path) -> dict[str, str]:
    """The environment that makes a process leave a trace."""
    return {"LD_PRELOAD": str(library), "R3L_TRACE": str(trace)}


def read_trace(path: Path) -> list[Event]:
    """The events of a trace, in order; a last one that was cut off is left out."""
    data, at, events = path.read_bytes(), 0, []
    while at + _HEAD.size <= len(data):
        kind, when, offset, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + length > len(data):
            break
        events.append(Event(kind.decode(), when, offset, data[at : at + length]))
        at += length
    return events


def images(events: list[Event], count: int, chance: random.Random, after: float) -> Iterator[Image]:
    """What `count` power losses at random points after `after` leave, in their order."""
    possible = [number for number, event in enumerate(events) if event.when > after]
    points = sorted(chance.sample(possible, min(count, len(possible))))
    durable, pending = bytearray(), []
    for number, event in enumerate(events):
        if points and number == points[0]:
            points.pop(0)
            under_way = [event] if event.kind != "S" else []
            yield Image(event.when, _survives(durable, [*pending, *under_way], chance))
        if event.kind == "S":
            for write in pending:
                _write(durable, write.offset, write.data)
            pending = []
        elif event.kind == "D":
            _write(durable, event.offset, event.data)
        else:
            pending.append(event)


def _survives(durable: bytearray, pending: list[Event], chance: random.Random) -> bytes:
    """The durable bytes and any pages of the pending writes: few, many or nearly all."""
    image, share = bytearray(durable), chance.choice((0.1, 0.5, 0.9))
    for write in pending:
        for start in range(0, len(write.data), PAGE):
            if chance.random() < share:
                _write(image, write.offset + start, write.data[start : start + PAGE])
    return bytes(image)


def _write(image: bytearray, offset: int, data: Any) -> None:
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data

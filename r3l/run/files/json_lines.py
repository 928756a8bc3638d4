"""Append-only files with one JSON object and its checksum on each line. Readers skip unreadable
lines, such as the half line that a killed process left."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from r3l.errors import UserError
from r3l.files.checksums import with_checksum, without_checksum
from r3l.files.whole_file import write_whole

log = logging.getLogger(__name__)
T = TypeVar("T")
TAIL_BYTES = 1 << 20  # more than a line


@dataclass(frozen=True)
class Lines(Generic[T]):
    """The readable lines of a file. `damaged`: the number of unreadable lines. `cut`: whether the
    file ends in half a line, which does not count as damaged."""

    values: list[T]
    damaged: int = 0
    cut: bool = False


def append(path: Path, value: Mapping[str, Any]) -> None:
    """Appends a line to the file at once, without a buffer. Raises OSError."""
    with path.open("a+b", buffering=0) as file:
        end = file.tell()
        file.seek(max(end - 1, 0))
        if file.read(1) not in (b"", b"\n"):
            log.warning("%s: removed an incomplete line at its end", path)
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        line = encoded(value)
        while line:
            line = line[file.write(line) :]


def thin(path: Path, most: int, sort: bytes) -> None:
    """Shortens a file if it has more bytes than `most`: in the older half, removes every second
    line of those that begin with `sort`. Raises OSError."""
    if path.stat().st_size <= most:
        return
    lines = path.read_bytes().splitlines(keepends=True)
    older, newer = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    places = [place for place, line in enumerate(older) if line.startswith(sort)]
    removed = set(places[1::2])
    kept = [line for place, line in enumerate(older) if place not in removed]
    write_whole(path, [*kept, *newer])


def encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(with_checksum(value)).encode() + b"\n"


def read(path: Path, parse: Callable[[dict[str, Any]], T]) -> Lines[T]:
    """Reads a file's complete lines. For a damaged line, `parse` may raise LookupError, TypeError
    or ValueError. Raises UserError if the file cannot be read."""
    try:
        whole, _, half = path.read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        return Lines([])
    except OSError as error:
        raise _unreadable(path, error) from None
    ends = [half] if half[:-1].endswith(b'"}') else []  # a whole line without its line break
    lines = parse_lines([*(whole.split(b"\n") if whole else ()), *ends], parse)
    if lines.damaged:
        log.warning("%s: %d damaged lines are left out", path, lines.damaged)
    return replace(lines, cut=bool(half) and not ends)


def newest_first(path: Path) -> Iterator[bytes]:
    """Yields a file's complete lines from its end on. Reads TAIL_BYTES at a time, and only as far
    as the caller asks for lines. Raises UserError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            at, rest, ended = file.seek(0, os.SEEK_END), b"", False
            while at:
                begin = max(at - TAIL_BYTES, 0)
                file.seek(begin)
                rest, *lines = (file.read(at - begin) + rest).split(b"\n")
                at = begin
                if lines and not ended:
                    lines.pop()  # half a line, or nothing after the last line break
                    ended = True
                yield from reversed(lines)
            if ended:
                yield rest
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be read ({error.strerror}); repair the file")


def parse_lines(lines: Sequence[bytes], parse: Callable[[dict[str, Any]], T]) -> Lines[T]:
    """Parses lines. Skips and counts unreadable lines."""
    values = list[T]()
    for line in lines:
        try:
            values.append(parse(without_checksum(json.loads(line))))
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return Lines(values, len(lines) - len(values))


class GrowingFile:
    """Reads the lines that are added to a file, even if `thin` rewrites the file. `at`: the offset
    to begin at, by default the current end."""

    def __init__(self, path: Path, at: int | None = None) -> None:
        self.path, self._at = path, at or 0
        self._file, self._last = 0, b""  # the inode, and the last line that was read
        if at is None and path.exists():
            self._at = max(path.stat().st_size - TAIL_BYTES, 0)
            self.new()

    def new(self) -> list[bytes]:
        """Returns the lines written since the last call."""
        if not self.path.exists():
            return []
        status, before = self.path.stat(), self._file
        if (status.st_ino, status.st_size) == (before, self._at):
            return []
        with self.path.open("rb") as file:
            self._file = status.st_ino
            if before not in (0, self._file):
                place = file.read().rfind(self._last)
                self._at = place + len(self._last) if place >= 0 else status.st_size
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        if not newline:
            return []
        self._at += len(whole) + len(newline)
        lines = whole.split(b"\n")
        self._last = lines[-1] + newline
        return lines

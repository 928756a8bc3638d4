"""Append-only files with one JSON object and its checksum on each line.

A process that is killed while writing may leave half a line at the end. Readers ignore it, and the
next appended line replaces it. Unreadable lines are skipped and counted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from r3l.errors import UserError
from r3l.files.checksums import sealed, unsealed

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Lines(Generic[T]):
    """The readable lines of a file, and the number of `damaged` ones."""

    values: list[T]
    damaged: int = 0


def append(path: Path, value: Mapping[str, Any]) -> None:
    """Appends a line; it is in the file when this returns. Raises OSError."""
    with path.open("a+b", buffering=0) as file:
        end = file.tell()
        file.seek(max(end - 1, 0))
        if file.read(1) not in (b"", b"\n"):
            log.warning("%s: half a line at its end is removed", path)
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        line = encoded(value)
        while line:
            line = line[file.write(line) :]


def encoded(value: Mapping[str, Any]) -> bytes:
    """Returns the line of a value."""
    return json.dumps(sealed(value)).encode() + b"\n"


def read(path: Path, parse: Callable[[dict[str, Any]], T]) -> Lines[T]:
    """Reads all whole lines of a file; the file may be missing. `parse` may raise LookupError,
    TypeError or ValueError if it cannot read an object. Raises UserError if the file cannot be
    opened."""
    try:
        whole, _, half = path.read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        return Lines([])
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); repair the file") from None
    ends = [half] if half[:-1].endswith(b'"}') else []  # whole, but for its line break
    lines = parsed([*(whole.split(b"\n") if whole else ()), *ends], parse)
    if lines.damaged:
        log.warning("%s: %d damaged lines are left out", path, lines.damaged)
    return lines


def parsed(lines: Sequence[bytes], parse: Callable[[dict[str, Any]], T]) -> Lines[T]:
    """Parses lines; unreadable ones are skipped and counted."""
    values = list[T]()
    for line in lines:
        try:
            values.append(parse(unsealed(json.loads(line))))
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return Lines(values, len(lines) - len(values))


class GrowingFile:
    """Reads the complete lines of a growing file, from its current end or from the offset `at`."""

    def __init__(self, path: Path, at: int | None = None) -> None:
        self.path = path
        self._at = (path.stat().st_size if path.exists() else 0) if at is None else at

    def new(self) -> list[bytes]:
        """Returns the lines written since the last call."""
        if not self.path.exists() or self.path.stat().st_size == self._at:
            return []
        with self.path.open("rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return whole.split(b"\n") if newline else []

"""The log of an engine: passed on, and its last lines kept to explain its death."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

LINES = 20
WAIT_S = 2.0


class EngineLog:
    """Forwards the output of processes started within `captured` to this process's stderr, and
    keeps the last lines."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._reader: threading.Thread | None = None

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Capture the output of this process within it, and of processes that start within it
        until they end."""
        reading, writing = os.pipe()
        own = [(fd, os.dup(fd)) for fd in (1, 2)]
        self._reader = threading.Thread(
            target=self._read, args=(reading, os.dup(2)), name="engine log", daemon=True
        )
        self._reader.start()
        for fd, _ in own:
            os.dup2(writing, fd)
        os.close(writing)
        try:
            yield
        finally:
            for fd, original in own:
                os.dup2(original, fd)
                os.close(original)

    def last_lines(self) -> list[str]:
        """The newest lines, oldest first."""
        return list(self._lines)

    def join(self) -> None:
        """Wait until all processes started within `captured` have ended."""
        if self._reader is not None:
            self._reader.join(timeout=WAIT_S)

    def _read(self, reading: int, onward: int) -> None:
        """Ends when the last process that writes has ended."""
        with os.fdopen(reading, "rb") as lines, os.fdopen(onward, "wb", buffering=0) as stderr:
            for line in lines:
                self._lines.append(line.decode("utf-8", "replace").rstrip())
                stderr.write(line)

"""The processes of this machine."""

import contextlib
from collections.abc import Iterator

import psutil


def every_process() -> Iterator[psutil.Process]:
    """Yields each process of this machine. `psutil.process_iter` would overlook a new process that
    has the id of an ended process."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)

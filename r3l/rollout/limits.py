"""Limits the time and the memory of a block of code."""

import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PAGE = resource.getpagesize()


@contextmanager
def limited(seconds: float, more_bytes: int) -> Iterator[None]:
    """In the block, raises MemoryError if the process grows by `more_bytes`. In the main thread,
    also raises TimeoutError after `seconds` of wall time."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        most = int(file.read().split()[0]) * PAGE + more_bytes
    timed = threading.current_thread() is threading.main_thread()
    if timed:
        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, if the code caught it
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

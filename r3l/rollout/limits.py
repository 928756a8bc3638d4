"""Limits the time and the memory of a block of code."""

import math
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PAGE = resource.getpagesize()


@contextmanager
def limited(seconds: float, more_bytes: int, cpu_s: float = math.inf) -> Iterator[None]:
    """In the block, raises MemoryError if the process grows by `more_bytes`. In the main thread,
    also raises TimeoutError after `seconds` of wall time, or `cpu_s` of the thread's CPU time,
    which does not pass while the machine does other work."""
    end, cpu_end = time.monotonic() + seconds, time.thread_time() + cpu_s

    def late(*_: object) -> None:
        if time.thread_time() >= cpu_end:
            raise TimeoutError(f"took more than {cpu_s:g} s of CPU time")
        if time.monotonic() >= end:
            raise TimeoutError(f"took more than {seconds:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        most = int(file.read().split()[0]) * PAGE + more_bytes
    timed = threading.current_thread() is threading.main_thread()
    if timed:
        before = signal.signal(signal.SIGALRM, late)
        # And every second: less CPU time may have passed, or the code may have caught the error.
        signal.setitimer(signal.ITIMER_REAL, min(seconds, cpu_s), 1.0)
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

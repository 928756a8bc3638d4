"""Ctrl-C and SIGTERM while a warm-up trains: the step under way is finished and saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from r3l.run.process.command_line import tell

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether a stop was asked for. A second signal raises
    KeyboardInterrupt at once. Outside the main thread, which alone gets signals, changes
    nothing."""
    asked = threading.Event()

    def note(signum: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        tell("warmup: stops when this step is saved; interrupt again to stop at once", err=True)

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {signum: signal.signal(signum, note) for signum in SIGNALS}
    try:
        yield asked.is_set
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)

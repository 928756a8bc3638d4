"""The end of the service: as soon as it is asked to, after the learner if its starter was killed.

    SIGTERM ─► starter alive ───────────────► stop
            └► starter gone ─► learner ends ─► stop      or is killed after `deadline_s`
                                                         a second signal: stop now
The kernel sends SIGTERM to every part of a run when its launcher is killed. The learner then
commits its last step and saves it, for which it needs the buffer. While it lives it holds a lock on
a file (`learner_lives`), which the kernel releases however it ends. Nobody else is there to kill
one that is stopped, or whose step takes too long.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ENDED_S = 25.0  # for a learner's last step; the run goes on from its last checkpoint otherwise
LOOKS_S = 0.1
SAME_S = 1.0  # the kernel signals once for each thread of the process that started this one
EXITING = 0x4  # PF_EXITING of the kernel, among the flags of a thread
log = logging.getLogger(__name__)


@contextmanager
def learner_lives(file: Path) -> Iterator[None]:
    """Hold the lock that says that a learner lives; several processes may."""
    with file.open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def has_learner(file: Path) -> bool:
    """Whether any process holds the lock on `file`."""
    try:
        with file.open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _holders(file: Path) -> set[int]:
    """The other processes on this machine that hold the lock, not those that only read the file."""
    found = set[int]()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # of another user, or it has ended
            if descriptor.samefile(file) and _locks(descriptor):
                found.add(int(descriptor.parts[2]))
    return found - {os.getpid()}


def _locks(descriptor: Path) -> bool:
    """Whether an open file, /proc/PID/fd/N, has a lock of `flock`."""
    info = descriptor.parents[1] / "fdinfo" / descriptor.name
    return "FLOCK" in info.read_text(encoding="utf-8")


def stop_on_signals(
    stop: Callable[[], None], learner: Path | None, deadline_s: float = ENDED_S
) -> None:
    """Call `stop` on SIGTERM or SIGINT; if the process that started this one is gone by then, when
    no learner holds the lock on the file `learner`. One that still does after `deadline_s` is
    killed."""
    starter, began = os.getppid(), list[float]()

    def wait_for_learner(file: Path) -> None:
        log.info("the process that started this one is gone; serving until the learner has ended")
        end = time.monotonic() + deadline_s
        while has_learner(file) and time.monotonic() < end:
            time.sleep(LOOKS_S)
        for pid in _holders(file):
            log.error(
                "process %d, a learner, has not ended for %g s; it is killed", pid, deadline_s
            )
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        stop()

    def asked(signum: int, _: object) -> None:
        now = time.monotonic()
        if learner is None or not _ends(starter) or (began and now > began[0] + SAME_S):
            stop()
        elif not began:
            began.append(now)
            threading.Thread(target=wait_for_learner, args=(learner,), daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)


def _ends(starter: int) -> bool:
    """Whether the process that started this one is gone, or its first thread is: the kernel sends
    the signal when that one ends, and the others of a killed process may live a moment longer."""
    if os.getppid() != starter:
        return True
    try:
        stat = Path(f"/proc/{starter}/stat").read_text(encoding="utf-8")
    except OSError:  # it went in between
        return True
    _, _, fields = stat.rpartition(")")
    state, *_, flags = fields.split()[:7]
    return state in "ZX" or bool(int(flags) & EXITING)

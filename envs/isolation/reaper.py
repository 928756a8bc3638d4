"""Ends a worker process and everything the worker started. envs.isolation.pool runs this module as
`python -m envs.isolation.reaper ACTOR MARK`.

    actor ─► reaper ─► worker (envs.isolation.worker) ─► what environments start
               ▲                                              │
               └── processes whose parents ended ◄────────────┘

The reaper acts when the worker ends, when the actor ends, or on SIGTERM. It kills every process
that the worker started, even one that called setsid. It finds them all, because it becomes the
parent of every orphan (PR_SET_CHILD_SUBREAPER). Then it removes the worker's temporary files and
exits with the worker's status. If the reaper itself is killed, the kernel kills the worker, and the
pool kills every process that has the reaper's mark: in the environment variable MARK, or (forks of
the worker and of starters, whose variables are hidden) in the command line.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NoReturn

from r3l.files.temporary_folder import held_folder, remove_tree
from r3l.run.process.end_with_parent import end_with, hide

FOLDER = "r3l-env-"
"""Beginning of the name of a worker's temporary folder."""
_PR_SET_CHILD_SUBREAPER = 36
CLEAR_S = 5.0
"""Time limit for killing what a worker left, seconds. A process stuck in the kernel dies later."""


def main(actor: int) -> None:
    """Forks a worker. Returns in the worker once its work is done. The parent waits and exits."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    end_with(actor, signal.SIGTERM)
    hide()
    folder, _ = held_folder(FOLDER)  # locked while this process or the worker lives
    reaper, tempfile.tempdir = os.getpid(), str(folder)
    if (worker := os.fork()) != 0:
        _reap(worker)
    os.setpgid(0, 0)  # an environment may signal its process group
    end_with(reaper)
    from envs.isolation.worker import main as work  # only here: the reaper stays small

    work()
    sys.stdout.flush()


def _reap(worker: int) -> NoReturn:
    """Waits for the worker, clears up after it, and exits with its status."""

    def kill_worker(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)

    signal.signal(signal.SIGTERM, kill_worker)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)  # the pool's pipes are the worker's
    ended = 0
    while ended != worker:
        ended, status = os.waitpid(-1, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _clear()
    remove_tree(tempfile.gettempdir())
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def _clear() -> None:
    """Kills all children, including the orphans that the reaper adopts meanwhile."""
    end = time.monotonic() + CLEAR_S
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def _children() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
                _, _, fields = stat.read().rpartition(b")")  # a name may hold anything
                if int(fields.split()[1]) == os.getpid():
                    yield int(entry)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # an environment's threads must not keep the process alive

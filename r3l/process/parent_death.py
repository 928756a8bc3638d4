"""The kernel ends a process with its parent, however that ends (Linux).

It does so when the thread that started the process ends, so that thread must live as long as its
process does.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1
STARTER = "R3L_STARTER_PID"  # environment variable: the process that starts this one


def end_with(parent: int | None, death_signal: int = signal.SIGKILL) -> None:
    """Send this process `death_signal` when `parent`, which started it, ends; or now, if it has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), death_signal)


def name_starter() -> None:
    """Give this process's id to the processes that it starts."""
    os.environ[STARTER] = str(os.getpid())


def end_with_starter() -> None:
    """Have the kernel kill this process, which frees the GPU, when the process that started it
    ends. It does nothing in a process that multiprocessing did not start, and may be called twice:
    first while multiprocessing imports the program again, before it knows its parent.
    """
    if (parent := multiprocessing.parent_process()) is not None:
        pid: int | None = parent.pid
    elif getattr(multiprocessing.current_process(), "_inheriting", False) and STARTER in os.environ:
        pid = int(os.environ[STARTER])
    else:
        return
    end_with(pid)
    name_starter()

"""Has the kernel end a process when its parent ends, for whatever reason (Linux).

The kernel does so when the thread that started the process ends, so that thread must live as long
as the process.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1
STARTER = "R3L_STARTER_PID"  # environment variable: the process that starts this one


def end_with(parent: int | None, death_signal: int = signal.SIGKILL) -> None:
    """Has the kernel send `death_signal` to this process when `parent`, which started it, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), death_signal)


def name_starter() -> None:
    """Passes this process's id to the processes that it starts."""
    os.environ[STARTER] = str(os.getpid())


def end_with_starter() -> None:
    """Has the kernel kill this process, which frees the GPU, when the process that started it
    ends. It does nothing in a process that multiprocessing did not start. It may be called twice:
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

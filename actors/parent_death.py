"""The death signal: an engine's process is killed when its actor ends, for any reason (Linux)."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1
STARTER = "R3L_STARTER_PID"  # environment variable: the process that starts this one


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


def end_with(parent: int | None) -> None:
    """Have the kernel kill this process when the process `parent`, which started it, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended already
        os.kill(os.getpid(), signal.SIGKILL)
    name_starter()

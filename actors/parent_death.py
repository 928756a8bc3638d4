"""An engine does not outlive its actor, however that ends (Linux)."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1
STARTER = "R3L_STARTER_PID"  # environment variable: the process that starts this one


def name_starter() -> None:
    """Let the processes that this one starts know whose they are."""
    os.environ[STARTER] = str(os.getpid())


def end_with_starter() -> None:
    """Have this process killed when the one that started it ends, and so free the GPU; nothing
    happens in a process that multiprocessing did not start. May be called more than once.

    Soonest while multiprocessing imports the program again, before it knows its parent.
    """
    if (parent := multiprocessing.parent_process()) is not None:
        pid: int | None = parent.pid
    elif getattr(multiprocessing.current_process(), "_inheriting", False) and STARTER in os.environ:
        pid = int(os.environ[STARTER])
    else:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:  # it ended before this could be asked for
        os.kill(os.getpid(), signal.SIGKILL)
    name_starter()

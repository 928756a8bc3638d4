"""Makes the kernel end a process when its parent ends, for whatever reason (Linux). Also hides a
process's memory from other processes.

The kernel acts when the thread that started the process ends. That thread must therefore live as
long as the process.
"""

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
STARTER = "R3L_STARTER_PID"  # environment variable: the process that starts this one


def end_with(parent: int | None, death_signal: int = signal.SIGKILL) -> None:
    """Makes the kernel send `death_signal` to this process when its parent, `parent`, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), death_signal)


def hide() -> None:
    """Hides the memory and environment variables of this process and its forks from the user's
    other processes. A program that it starts is not hidden. A debugger then needs root."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


def name_starter() -> None:
    """Passes this process's id to its child processes, for `end_with_starter`."""
    os.environ[STARTER] = str(os.getpid())


def end_with_starter() -> None:
    """Makes the kernel kill this process and free the GPU when the multiprocessing parent ends.
    Does nothing if multiprocessing did not start this process."""
    if (parent := multiprocessing.parent_process()) is not None:
        pid: int | None = parent.pid
    elif getattr(multiprocessing.current_process(), "_inheriting", False) and STARTER in os.environ:
        # multiprocessing is re-importing the program, and does not know the parent yet.
        pid = int(os.environ[STARTER])
    else:
        return
    end_with(pid)
    name_starter()

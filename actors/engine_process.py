"""Forks the engine's process from the actor, which has already imported all of vLLM.

A new process would import everything again, which takes as long as the rest of the start. vLLM
forks by default, but not on CPU. Two kinds of processes cannot be forked:

- one that computes with several OpenMP threads: the fork would wait for threads that it lacks. So
  an actor computes with one thread until its engine is forked.
- one that has joined a torch.distributed process group, as a learner has: the engine's workers
  would use that group instead of a group of their own

The fork is killed with its actor (r3l.run.process.end_with_parent). It gives up the actor's
connections, because an environment's worker exits only when no process holds its pipe.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

from r3l.files.own_packages import ENGINE
from r3l.run.process.end_with_parent import end_with, name_starter

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
# Otherwise asking whether there is a GPU opens it, and then no fork of this process can use it.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
GPU_DRIVER = "/dev/nvidia"
_parent = 0
"""This process's id while its forks belong to an engine, otherwise 0. It is set in an actor that
starts an engine and in the engine's own processes. Forks that belong to an engine end with it."""
_left: set[int] = set()
"""File descriptors that the next fork gives up."""
_threads = 0
"""How many OpenMP threads the next fork gets; 0 means as many as this process has."""


def leave_threads_to_engine() -> None:
    """Limits this process to one OpenMP thread until it forks an engine. Call this before any
    computation."""
    import torch

    global _threads
    _threads = torch.get_num_threads()
    torch.set_num_threads(1)


@contextmanager
def forked() -> Iterator[None]:
    """Makes vLLM fork the engine, if this process can be forked. Call this in the main thread,
    because the engine ends with the calling thread."""
    os.environ[ENGINE] = "1"  # r3l's plugin of vLLM works in this engine's processes alone
    try:
        with _started():
            yield
    finally:
        del os.environ[ENGINE]


@contextmanager
def _started() -> Iterator[None]:
    """Sets how vLLM starts the engine's process, and what a fork gives up."""
    import torch

    global _parent, _threads
    if torch.get_num_threads() > 1 or torch.distributed.is_initialized():
        os.environ.setdefault(METHOD, "spawn")  # vLLM forks on GPUs
        yield
        return
    tracker = resource_tracker.getfd()  # it must know the shared memory of the engine, too
    listed = {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, tracker}
    _left.update(descriptor for descriptor in listed if _is_given_up(descriptor))
    _parent = os.getpid()
    method, os.environ[METHOD] = os.environ.get(METHOD), "fork"
    try:
        yield
    finally:
        _parent = 0
        _left.clear()
        torch.set_num_threads(_threads or torch.get_num_threads())
        _threads = 0
        os.environ.pop(METHOD)
        if method is not None:
            os.environ[METHOD] = method


def _begin() -> None:
    """In a fork, gives up the parent's connections and makes the fork end with its parent."""
    global _parent
    if not _parent:
        return
    import torch

    end_with(_parent)
    name_starter()
    torch.set_num_threads(_threads or torch.get_num_threads())
    _parent = os.getpid()  # what an engine forks ends with it
    signal.set_wakeup_fd(-1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in _left - {nothing}:  # not closed: a later close would hit another file
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _left.clear()


def _is_given_up(descriptor: int) -> bool:
    """Whether a fork gives up a file descriptor. A fork keeps the GPU driver's descriptors, because
    the driver's library uses them."""
    try:
        return not os.readlink(f"/proc/self/fd/{descriptor}").startswith(GPU_DRIVER)
    except FileNotFoundError:  # closed, such as the descriptor that `os.listdir` used
        return False


os.register_at_fork(after_in_child=_begin)

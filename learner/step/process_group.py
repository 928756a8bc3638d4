"""Joins the process group of the ranks once, and leaves it when the interpreter ends."""

import atexit
import os
import socket
from datetime import timedelta

import torch

LOOPBACK = "127.0.0.1"  # the first machine's address if there is no other


def join_process_group(timeout_s: float) -> None:
    """Joins the launcher's process group. Without a launcher, makes a group of one process. Leaves
    the group at exit. Collectives fail after `timeout_s`."""
    import deepspeed

    if torch.distributed.is_initialized():
        return
    # DeepSpeed compiles its own CPU all-reduce at first use. A killed build leaves a lock file, on
    # which the next build waits forever. gloo's all-reduce is used instead.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    for name in ("RANK", "LOCAL_RANK"):
        os.environ.setdefault(name, "0")
    if os.environ.setdefault("WORLD_SIZE", "1") == "1":
        # A single rank needs no port, which another process might take.
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    timeout = timedelta(seconds=timeout_s)
    if not torch.distributed.is_initialized() and os.environ.get("MASTER_ADDR") == LOOPBACK:
        _meet_on_this_machine(backend, timeout)
    deepspeed.init_distributed(dist_backend=backend, verbose=False, timeout=timeout)
    atexit.register(leave_process_group)  # an open group can abort the process


def _meet_on_this_machine(backend: str, timeout: timedelta) -> None:
    """Joins a group of ranks on this machine, at the loopback address. By default, the libraries
    use public addresses, where anyone could connect."""
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    listening = socket.create_server((LOOPBACK, port)).detach() if rank == 0 else None
    store = torch.distributed.TCPStore(
        LOOPBACK, port, world, rank == 0, timeout, master_listen_fd=listening
    )
    torch.distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timeout
    )


def leave_process_group() -> None:
    """Leaves all process groups that this process is in."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()

"""The process group of the ranks: joined once, left when the interpreter ends."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta

import torch


def join_process_group(timeout_s: float) -> None:
    """Join the group that the launcher describes in the environment, or a group of one. Its
    collectives fail after `timeout_s`. The process leaves it when the interpreter ends: a group
    that is still open then can abort the process."""
    import deepspeed

    if torch.distributed.is_initialized():
        return
    # DeepSpeed compiles its own CPU all-reduce at the first use, under a lock file that a killed
    # build leaves behind and that the next one waits for without end. gloo's all-reduce will do.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    for name in ("RANK", "LOCAL_RANK"):
        os.environ.setdefault(name, "0")
    if os.environ.setdefault("WORLD_SIZE", "1") == "1":
        # A single rank needs no port, which another process might take.
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    timeout = timedelta(seconds=timeout_s)
    deepspeed.init_distributed(dist_backend=backend, verbose=False, timeout=timeout)
    atexit.register(leave_process_group)


def leave_process_group() -> None:
    """Leave every process group, if this process is in one."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()

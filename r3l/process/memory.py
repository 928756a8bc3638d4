"""Memory settings of a process: return freed memory to the OS, keep garbage collections short.

glibc returns a freed block at once only if it is larger than a threshold, which it raises up to 32
MiB as large blocks are freed. Tensors of changing sizes then leave holes in the heap, and the
process grows as long as it runs. An explicitly set threshold stays fixed. Blocks above it get fresh
pages each time, which is cheap with huge pages. Blocks below it reuse pages, because fresh small
pages are expensive (a third of a small policy's step time). The heap keeps free pages at its end up
to a limit.

A full garbage collection visits every object of the process. With torch and vLLM imported it takes
a quarter of a second, during which an actor sends no request and a learner makes no step.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
from contextlib import suppress
from pathlib import Path

import psutil

STEADY_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Environment variables for a process that allocates and frees tensors all the time; glibc reads
them when the process starts."""

CONTROL_GROUP = Path("/sys/fs/cgroup")
"""The limits of a container's own control group (version 2)."""


def freeze_heap() -> None:
    """Excludes all live objects from garbage collection; call it once a process has started up. It
    first collects all garbage, including that excluded by earlier calls."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def private_bytes() -> int:
    """Returns the bytes of this process that are not backed by a file: heap, stacks, messages
    (Linux)."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * mmap.PAGESIZE


def free_memory(control_group: Path = CONTROL_GROUP) -> int:
    """Returns how many more bytes this process may allocate on the machine and in its container."""
    free: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # there is no group, or it has no limit
        limit = int((control_group / "memory.max").read_text())
        used = int((control_group / "memory.current").read_text())
        counted = dict(
            line.split() for line in (control_group / "memory.stat").read_text().splitlines()
        )
        free = min(free, limit - used + int(counted["inactive_file"]))
    return free


def return_freed_memory() -> None:
    """Returns the pages of freed blocks to the system immediately (glibc). Threads other than the
    main one keep up to 64 MiB at the free end of their heap."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

"""Makes a process return freed memory to the system, and keeps garbage collections short.

glibc returns a freed block at once only if it is larger than a threshold. Freeing a large block
raises this threshold, up to 32 MiB. Tensors of changing sizes then leave holes in the heap, and the
process grows. STEADY_MEMORY fixes the threshold at 4 MiB. With a threshold of 0, fresh pages
for small blocks would cost a third of a small policy's step time.

A full garbage collection visits every object. With torch and vLLM imported it takes a quarter of a
second, and the process does nothing else in that time. During the imports, collections take a
quarter of the CPU time and find almost no garbage.
"""

import ctypes
import gc
import mmap
import os
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path

import psutil

STEADY_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Environment variables for a process that allocates and frees tensors all the time. glibc reads
them when the process starts."""
FEW_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
"""Environment variables for training. oneDNN keeps a kernel, with its memory, for each shape of a
bfloat16 product: 1,024 of them by default. Micro-batches rarely have the same shape twice, so the
learner of a model of 135 million parameters grew to 9.8 GB in 35 steps. With 64 kernels it had 3.7
GB after 21 steps, and steps took as long. oneDNN reads the variable with its first product."""

CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""For cgroup v2 and v1: the files of a control group's memory limit and memory use, and the key of
its cache in memory.stat."""


def keep_memory_steady() -> None:
    """Limits how much memory this process keeps for freed tensors and for oneDNN's kernels. If a
    variable of STEADY_MEMORY is not set, starts the process again with the same arguments, because
    glibc reads these variables only when a process starts. A command that users type calls this
    function first. Keeps values that the user has set."""
    for name, value in FEW_KERNELS.items():
        os.environ.setdefault(name, value)
    missing = {name: value for name, value in STEADY_MEMORY.items() if name not in os.environ}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | missing)


def delay_collections() -> None:
    """Stops garbage collection until `freeze_heap`. A process calls this function first."""
    gc.disable()


def freeze_heap() -> None:
    """Collects garbage, then excludes the remaining objects from later collections. Call it when
    the process has started up."""
    gc.unfreeze()  # some objects that an earlier call froze may be garbage now
    gc.collect()
    gc.freeze()
    gc.enable()


def private_bytes() -> int:
    """Returns the process's resident bytes, without file-backed and shared pages (Linux)."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * mmap.PAGESIZE


def oom_kills() -> int:
    """Returns how many processes this machine's kernel has killed for lack of memory; 0 if it does
    not count them."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def free_memory(root: Path = CONTROL_GROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Returns how many bytes this process may still allocate. Considers the machine's memory and
    the limits of control groups."""
    free: int = psutil.virtual_memory().available
    for group, (limit, used, cache) in product(_groups(root, membership), MEMORY_FILES):
        with suppress(OSError, ValueError):  # there is no such file, or no limit
            numbers = [int((group / name).read_text()) for name in (limit, used)]
            counted = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
            free = min(free, numbers[0] - numbers[1] + int(counted[cache]))
    return max(free, 0)


def all_memory(root: Path = CONTROL_GROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Returns how many bytes this process and those beside it may have together: the machine's
    memory, or the tightest limit of the control groups."""
    most: int = psutil.virtual_memory().total
    for group, (limit, *_) in product(_groups(root, membership), MEMORY_FILES):
        with suppress(OSError, ValueError):
            most = min(most, int((group / limit).read_text()))
    return most


def _groups(root: Path, membership: Path) -> set[Path]:
    """Returns the folders of all control groups that may limit this process's memory. In a
    container, some folders may exist only on the host."""
    groups = {root, root / "memory"}
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "memory" in controllers.split(","):
                top = root / "memory" if controllers else root
                own = top / path.lstrip("/")
                groups.update(g for g in (own, *own.parents) if g.is_relative_to(top))
    return groups


def return_freed_memory() -> None:
    """Gives freed pages back to the system at once (glibc). Afterwards, each thread except the main
    thread may still hold up to 64 MiB of freed pages."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

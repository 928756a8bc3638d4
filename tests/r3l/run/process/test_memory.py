"""Freed memory goes back to the system, and garbage collections skip long-lived objects."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from r3l.run.process.memory import (
    STEADY_MEMORY,
    all_memory,
    free_memory,
    oom_kills,
    private_bytes,
    return_freed_memory,
)

LEAVE_HOLES = """
import numpy as np

def held_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("RssAnon"))

np.ones(30 << 20, np.uint8)  # freed at once: glibc's threshold follows its size
before = held_mib()
large, small = [], []
for _ in range(30):
    large.append(np.ones(6 << 20, np.uint8))
    small.append(np.ones(1000, np.uint8))
del large
print(held_mib() - before)
"""


COUNT_FAULTS = """
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({times}):
    bytes(bytearray({size}))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
LARGE = COUNT_FAULTS.format(times=4, size=32 << 20)
SMALL = COUNT_FAULTS.format(times=200, size=1 << 20)
FREEZE = """
import gc, weakref
from r3l.run.process.memory import delay_collections, freeze_heap

class Engine:
    def __init__(self):
        self.itself = self

delay_collections()
assert not gc.isenabled()
kept, engine = [[] for _ in range(100_000)], Engine()
freeze_heap()
assert gc.isenabled()
assert gc.get_freeze_count() > 100_000
looked_at, alive = len(gc.get_objects()), weakref.ref(engine)
del engine
gc.collect()
assert alive(), "what is frozen is not looked at"
freeze_heap()
assert alive() is None, "what was frozen and is garbage now is collected by the next"
print(looked_at)
"""
STEADY = """
from r3l.run.process.memory import keep_memory_steady
keep_memory_steady()
"""
KERNELS = (
    STEADY
    + """
import os
print(os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"])
"""
)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _held_mib(environment: dict[str, str]) -> int:
    return _run(LEAVE_HOLES, environment)


def _run(program: str, environment: dict[str, str]) -> int:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, check=True)
    return int(done.stdout)


def test_steady_memory_returns_freed_blocks_to_the_system() -> None:
    assert _held_mib(STEADY_MEMORY) < 20
    assert _held_mib({"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}) > 100


def test_a_command_that_starts_itself_again_returns_freed_blocks_too() -> None:
    assert _run(STEADY + LEAVE_HOLES, {}) < 20
    assert _run(STEADY + LEAVE_HOLES, {"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}) > 100


def test_training_keeps_few_kernels_unless_the_user_says_how_many() -> None:
    assert _run(KERNELS, {}) == 64
    assert _run(KERNELS, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "7"}) == 7


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(),
    reason="this system has no huge pages for the asking",
)
def test_large_blocks_are_allocated_in_large_pages() -> None:
    assert _run(LARGE, STEADY_MEMORY) < 10_000
    assert _run(STEADY + LARGE, {}) < 10_000
    plain = STEADY_MEMORY | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert _run(LARGE, plain) > 50_000 or "[always]" in HUGE_PAGES.read_text()


def test_small_blocks_are_allocated_in_pages_that_were_used_before() -> None:
    assert _run(SMALL, STEADY_MEMORY) < 5_000
    fresh = STEADY_MEMORY | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    assert _run(SMALL, fresh) > 20_000 or "[always]" in HUGE_PAGES.read_text()


def test_garbage_collections_leave_a_frozen_heap_out() -> None:
    assert _run(FREEZE, {}) < 1000


def test_private_memory_grows_with_what_is_allocated_and_shrinks_when_it_is_given_back() -> None:
    before = private_bytes()
    block = b"x" * 200_000_000
    assert private_bytes() - before > 180_000_000
    del block
    return_freed_memory()
    assert private_bytes() - before < 50_000_000


@pytest.mark.parametrize("nested", ["", "job/step"])
@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_that_of_the_tightest_control_group(
    tmp_path: Path, version: int, nested: str
) -> None:
    membership = tmp_path / "membership"
    membership.write_text(f"{'7:cpu,memory' if version == 1 else '0:'}:/{nested}/inner\n")
    machine = free_memory(tmp_path / "no group", membership)
    assert machine > 1 << 20
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    limit, used, cache = names[version]
    group = tmp_path / ("memory" if version == 1 else "") / nested
    (group / "inner").mkdir(parents=True)
    (group / limit).write_text("900000")
    (group / used).write_text("500000")
    (group / "memory.stat").write_text(f"anon 400000\n{cache} 100000\n")
    assert free_memory(tmp_path, membership) == 500_000
    assert all_memory(tmp_path, membership) == 900_000
    (group / limit).write_text("max\n" if version == 2 else str((1 << 63) - 4096))
    assert free_memory(tmp_path, membership) > 1 << 20
    assert all_memory(tmp_path, membership) >= machine


def test_the_kernel_counts_the_processes_that_it_killed() -> None:
    counted = [x for x in Path("/proc/vmstat").read_text().splitlines() if "oom_kill " in x]
    assert oom_kills() == (int(counted[0].split()[1]) if counted else 0)

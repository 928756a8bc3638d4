"""Freed memory goes back to the system, whatever lies between the freed blocks."""

import os
import subprocess
import sys

from r3l.memory import STEADY_MEMORY

LEAVE_HOLES = """
import numpy as np

def held_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("RssAnon"))

np.ones(30 << 20, np.uint8)  # freed at once: glibc's threshold follows its size
before = held_mib()
large, small = [], []
for _ in range(200):
    large.append(np.ones(1 << 20, np.uint8))
    small.append(np.ones(1000, np.uint8))
del large
print(held_mib() - before)
"""


def _held_mib(environment: dict[str, str]) -> int:
    command = [sys.executable, "-c", LEAVE_HOLES]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, check=True)
    return int(done.stdout)


def test_blocks_freed_between_others_are_given_back_where_memory_is_steady() -> None:
    assert _held_mib(STEADY_MEMORY) < 20
    assert _held_mib({"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}) > 150

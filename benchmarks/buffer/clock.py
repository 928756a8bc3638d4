"""What every contestant of `throughput` shares: the group, the clock, the speed of an operation."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.buffer.service import attempt
from r3l import codec
from r3l.records import SlotResult

SLOTS, TOKENS, BATCH, A_COMMIT = 8, 1024, 12, 32
IN_FLIGHT, LEASES = 16, 96  # requests under way at a time
COLUMNS = SLOTS * TOKENS * (4 + 4 + 1)  # bytes of ids, log-probabilities and mask of a group


class Unavailable(Exception):
    """A contestant that cannot take part; the message says why."""


@dataclass(frozen=True)
class Speed:
    """Speed of one operation: groups a second, CPU per group, bytes per group."""

    groups_per_s: float
    client_ms: float
    server_ms: float
    nbytes: int


@dataclass(frozen=True)
class Run:
    """One contestant's turn: a folder of its own and how many groups."""

    folder: Path
    groups: int

    @contextmanager
    def clock(
        self, what: str, speeds: dict[str, Speed], nbytes: int, server: int | None = None
    ) -> Iterator[None]:
        """Measure the block, in which all groups are put or drawn."""
        processes = [psutil.Process(pid) for pid in (None, server) if pid != 0]
        before = [_cpu(process) for process in processes]
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        used = [(_cpu(p) - b) / self.groups * 1e3 for p, b in zip(processes, before, strict=True)]
        speeds[what] = Speed(
            self.groups / seconds, used[0], used[1] if server is not None else 0.0, nbytes
        )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def group_results() -> list[SlotResult]:
    """The results of one group."""
    return [attempt(slot, 0, TOKENS) for slot in range(SLOTS)]


def group_blob() -> bytes:
    """A group as the peers are given it: its encoded record, as one string of bytes."""
    return b"".join(codec.encode(result) for result in group_results())

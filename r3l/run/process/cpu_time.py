"""Measures the CPU time of this process and of all that it started.

a process ends ─► its parent waited: its time is in the parent's, perhaps at the next look only
              └─► nobody waited: it keeps what was seen of it
"""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

LOOK_S = 5.0
"""Seconds between two looks at the processes, each of which reads all of /proc."""
_TICKS_BEFORE = 19
"""Fields between a process's name and its start in /proc/PID/stat."""


@dataclass(frozen=True)
class Times:
    """CPU seconds of a process. `waited`: the CPU seconds of its descendants that have ended and
    were waited for. `pid`, `parent`: its id and its parent's."""

    pid: int
    parent: int
    own: float
    waited: float


@dataclass
class _Known:
    """What was seen of a process. `pending`: CPU seconds of children that had vanished at the last
    look and are not in `waited` yet."""

    own: float = 0.0
    waited: float = 0.0
    pid: int = 0
    parent: int = 0
    vanished: float = 0.0  # at this look
    pending: float = 0.0


def tree() -> dict[Hashable, Times]:
    """Looks at this process and its descendants, parents first. The keys tell processes of the same
    id apart, even if the wall clock is changed."""
    own = psutil.Process()
    seen: dict[Hashable, Times] = {}
    # A parent is read before its children: one that it waits for meanwhile is missed, not doubled.
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error), process.oneshot():
            used = process.cpu_times()
            waited = used.children_user + used.children_system
            seen[process] = Times(process.pid, process.ppid(), used.user + used.system, waited)
    return seen


class CpuMeter:
    """Adds up the CPU time of a tree of processes. The sum never falls, and counts nothing twice.
    May miss a process that vanishes while its parent waits for others."""

    def __init__(self, look: Callable[[], Mapping[Hashable, Times]] = tree) -> None:
        self._look, self._known = look, dict[Hashable, _Known]()
        self._lost, self._total, self._at = 0.0, 0.0, float("-inf")

    def seconds(self, *, newest: bool = False) -> float:
        """Returns the CPU seconds so far, at most LOOK_S old unless `newest`."""
        now = time.monotonic()
        if newest or now - self._at >= LOOK_S:
            self._at = now
            self._add(self._look())
        return self._total

    def _add(self, seen: Mapping[Hashable, Times]) -> None:
        self._forget([key for key in self._known if key not in seen])
        for key, times in seen.items():
            self._update(self._known.setdefault(key, _Known()), times)
        held = sum(each.own + each.waited + each.pending for each in self._known.values())
        self._total = max(self._total, self._lost + held)

    def _forget(self, gone: list[Hashable]) -> None:
        """Hands what was seen of processes that vanished to their parents, children first."""
        by_pid = {known.pid: known for known in self._known.values()}
        for key in reversed(gone):
            known = self._known.pop(key)
            value = known.own + known.waited + known.pending + known.vanished
            parent = by_pid.get(known.parent)
            if parent is None:
                self._lost += value
            else:
                parent.vanished += value

    def _update(self, known: _Known, times: Times) -> None:
        """Takes over a look. Growth of `waited` counts first as time of the children that vanished.
        If it has not grown by the next look, nobody waited for them."""
        grown = max(times.waited - known.waited, 0.0)
        late = max(known.pending - grown, 0.0)
        self._lost += late
        grown = max(grown - known.pending, 0.0)
        known.pending = max(known.vanished - grown, 0.0)
        known.vanished, known.pid, known.parent = 0.0, times.pid, times.parent
        known.own, known.waited = max(known.own, times.own), max(known.waited, times.waited)


_THIS_PROCESS = CpuMeter()


def cpu_seconds(*, newest: bool = False) -> float:
    """Returns the CPU seconds of this process and of all that it started, so far."""
    return _THIS_PROCESS.seconds(newest=newest)


def age_s() -> float:
    """Returns how many seconds ago this process started, whatever the wall clock was set to."""
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    ticks = int(stat.rpartition(")")[2].split()[_TICKS_BEFORE])  # since the machine started
    began = ticks / os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - began, 0.0)

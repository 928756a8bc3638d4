"""Decides whether and when dead processes are restarted."""

import errno
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field

from launch.backends.processes import Child
from learner.exit_codes import EXIT_CODES
from r3l.errors import BufferUnavailable, RestartNeeded, TrainingStopped, UserError

WINDOW_S = 3600.0
FINAL = {EXIT_CODES[UserError], EXIT_CODES[TrainingStopped]}
FULL_DISK = os.strerror(errno.ENOSPC)
BACK_OFF_S, LONGEST_S = 2.0, 60.0
NOT_COUNTED = {EXIT_CODES[RestartNeeded], EXIT_CODES[BufferUnavailable]}


@dataclass
class Restarts:
    """Decides which dead processes are restarted. `limits`: how often each process may be
    restarted in WINDOW_S. A process without a limit is never restarted."""

    limits: dict[str, int]
    deaths: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # times
    begun: set[str] = field(default_factory=set)  # processes that were ready once

    def allow(self, child: Child, now: float | None = None) -> bool:
        """Decides whether to restart the ended process `child`. Counts its death.

        A process is not restarted if one of these is true:
        - Its exit code is in FINAL: it would fail again.
        - It was never ready, and its exit code is not in NOT_COUNTED.
        - It has used up its limit. Deaths with a full disk or a code in NOT_COUNTED do not count.
        """
        if child.ready:
            self.begun.add(child.name)
        if child.name not in self.limits or child.exit_code in FINAL:
            return False
        if child.exit_code in NOT_COUNTED:
            return True
        now = time.monotonic() if now is None else now
        deaths = self.deaths[child.name]
        if child.name not in self.begun:
            return False
        if FULL_DISK in child.reason():
            return True
        deaths[:] = [at for at in deaths if now - at < WINDOW_S]
        deaths.append(now)
        return len(deaths) <= self.limits[child.name]

    def delay_s(self, child: Child) -> float:
        """Returns the seconds to wait before a restart. The wait grows with each counted death, up
        to LONGEST_S. A full disk causes the longest wait."""
        if FULL_DISK in child.reason():
            return LONGEST_S
        earlier = len(self.deaths[child.name]) - 1
        return min(BACK_OFF_S * 2.0 ** (earlier - 1), LONGEST_S) if earlier > 0 else 0.0

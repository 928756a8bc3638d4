"""Which dead processes are started again, and how often."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

from launch.processes import Child
from learner.protocol import EXIT_CODES
from r3l.errors import RestartNeeded, TrainingStopped, UserError

WINDOW_S = 3600.0
FINAL = {EXIT_CODES[UserError], EXIT_CODES[TrainingStopped]}
ASKED = EXIT_CODES[RestartNeeded]


@dataclass
class Restarts:
    """Counts deaths by name. `limits`: how many within WINDOW_S a process may die and be started
    again; one that is not listed is never."""

    limits: dict[str, int]
    deaths: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def allow(self, child: Child, ready: str, now: float | None = None) -> bool:
        """Whether to start `child` again, which has ended.

        Not where its exit code says that it would only end again, and not where it died at its
        first start before it wrote the line `ready`: that is no accident. One that asked to be
        started again (exit code of RestartNeeded) is, and it does not count.
        """
        if child.name not in self.limits or child.exit_code in FINAL:
            return False
        if child.exit_code == ASKED:
            return True
        now = time.monotonic() if now is None else now
        deaths = self.deaths[child.name]
        if not deaths and not child.ready(ready):
            return False
        deaths[:] = [at for at in deaths if now - at < WINDOW_S]
        deaths.append(now)
        return len(deaths) <= self.limits[child.name]

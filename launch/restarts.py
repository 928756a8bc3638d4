"""Which dead processes are started again, and how often."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from launch.processes import Child
from learner.run_files import EXIT_CODES, LAST_SIGN
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


GRACE_S = 60.0  # beyond the learner's own deadline, for ranks that end themselves to be gone


@dataclass
class LastSign:
    """The file a learner writes in the run folder `run` at each sign of life.

    Its age is measured by this process's clock: the file system may be another machine's.
    """

    run: Path
    limit_s: float
    _stamp: int = 0
    _seen: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        """A learner was started: its time begins now."""
        self._seen = time.monotonic()

    def overdue(self) -> bool:
        """Whether none came for so long that the learner should have ended itself."""
        try:
            stamp = (self.run / LAST_SIGN).stat().st_mtime_ns
        except FileNotFoundError:
            stamp = 0
        if stamp != self._stamp:
            self._stamp, self._seen = stamp, time.monotonic()
        return time.monotonic() - self._seen > self.limit_s + GRACE_S

    @property
    def doing(self) -> str:
        """What the learner was at when it gave the last sign."""
        path = self.run / LAST_SIGN
        return path.read_text(encoding="utf-8") if path.is_file() else ""

"""Measures the age of a learner's last heartbeat, with this process's clock."""

import time
from dataclasses import dataclass, field
from pathlib import Path

HEARTBEAT = ".last-heartbeat"
"""The file in a run's folder that the learner writes when it begins a piece of work."""
GRACE_S = 60.0  # most time after the learner's own deadline in which ranks may end themselves


@dataclass
class LastHeartbeat:
    """Measures the age of the heartbeat file in the folder `run`, even if its file system uses
    another machine's clock. `limit_s`: `learner.hang_s`."""

    run: Path
    limit_s: float
    _heartbeat_ns: int = 0
    _seen: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        """Restarts the clock for a learner that was just started."""
        self._seen = time.monotonic()

    def overdue(self) -> bool:
        """Whether the heartbeat is so old that the learner should have ended itself."""
        file = self.run / HEARTBEAT
        heartbeat_ns = file.stat().st_mtime_ns if file.exists() else 0
        if heartbeat_ns != self._heartbeat_ns:
            self._heartbeat_ns, self._seen = heartbeat_ns, time.monotonic()
        return time.monotonic() - self._seen > self.limit_s + min(self.limit_s, GRACE_S)

    @property
    def doing(self) -> str:
        """The learner's activity at its last heartbeat."""
        file = self.run / HEARTBEAT
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

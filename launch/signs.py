"""The learner's signs of life, as its launcher sees them (learner.watchdog gives them)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from learner.protocol import LAST_SIGN

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

"""What a learner reports to its launcher: exit codes, lines in its log, files in the run folder.

Importing this module loads nothing that only training needs.
"""

from __future__ import annotations

import signal
from pathlib import Path

from r3l import config as configuration
from r3l.config import RunConfig
from r3l.errors import BufferUnavailable, R3LError, RestartNeeded, TrainingStopped, UserError

EXIT_CODES: dict[type[R3LError], int] = {
    UserError: 2,
    TrainingStopped: 3,
    RestartNeeded: 4,
    BufferUnavailable: 5,
}
"""Why the learner ended: the user's settings are wrong, a restart would end the same way, a restart
is needed, or the buffer did not reply for `buffer.patience_s`."""

READY_LINE = "r3l-learner ready"
WEIGHTS_LINE = "r3l-learner serves weights at"
DONE_LINE = "r3l-learner done"
HANGS_LINE = "r3l-learner hangs"

PROGRESS = "progress.jsonl"
"""One line for every step and evaluation."""
JOURNAL = "journal"
"""The folder of published weights (r3l.weights.journal)."""
LAST_HEARTBEAT = ".last-heartbeat"
"""What the learner was doing at its last heartbeat."""
LEARNER_LIVES = ".learner-lives"
"""The file on which a learner holds a lock; a buffer service whose launcher was killed waits for
its end."""
LAUNCHER = "R3L_LAUNCHER_PID"
"""Environment variable of ranks: the launcher on this machine that started them."""
HANGS = "hangs.jsonl"
"""One line for every hang, written by the launcher, counted by the learner."""

STACKS = signal.SIGUSR2
"""The signal that makes a learner's process write every thread's stack to its log, even while
its interpreter is busy."""


def settings_of(run: Path, step: int) -> RunConfig:
    """The settings with which a run made an optimizer step; r3l-launch keeps earlier ones when they
    change. Raises UserError."""
    changed = sorted(run.glob("config.before-step-*.yaml"))
    later = [path for path in changed if int(path.stem.rpartition("-")[2]) > step]
    path = later[0] if later else run / "config.yaml"
    if not path.is_file():
        raise UserError(f"run {run}: no config.yaml there; give the folder of a run")
    return configuration.load(path)

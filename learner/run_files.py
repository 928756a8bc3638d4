"""What a learner reports to its launcher: exit codes, lines in its log, signals.

Importing this module loads nothing that only training needs.
"""

from __future__ import annotations

import signal

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

STACKS = signal.SIGUSR2
"""The signal that makes a learner's process write every thread's stack to its log, even while
its interpreter is busy."""

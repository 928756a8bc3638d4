"""Defines the exit codes and the signal that a learner and its launcher share. Needs no torch."""

import signal

from r3l.errors import (
    BufferUnavailable,
    LearnerHung,
    R3LError,
    RestartNeeded,
    SchemaVersionError,
    StoreError,
    TrainingStopped,
    UserError,
)

EXIT_CODES: dict[type[R3LError], int] = {
    UserError: 2,
    SchemaVersionError: 2,
    StoreError: 2,
    TrainingStopped: 3,
    RestartNeeded: 4,
    BufferUnavailable: 5,
    LearnerHung: 6,
}
"""2: the user's settings are wrong, or a store cannot be read. 3: training stopped, and would stop
again after a restart. 4: the learner must be restarted. 5: the buffer did not reply for
`buffer.patience_s`. 6: a rank sent no heartbeat."""

STACKS = signal.SIGUSR2
"""Makes a learner's process write every thread's stack to its log, even while its interpreter is
busy."""

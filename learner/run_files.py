"""What a learner tells whoever started it: exit codes, lines in its log, files in the run folder.

Its launcher reads them without importing what a learner needs to train.
"""

from __future__ import annotations

import signal

from r3l.errors import R3LError, RestartNeeded, TrainingStopped, UserError

EXIT_CODES: dict[type[R3LError], int] = {UserError: 2, TrainingStopped: 3, RestartNeeded: 4}
"""Why the learner ended: what the user asked for is wrong, starting it again would end the same,
or it has to be started again."""

READY_LINE = "r3l-learner ready"
DONE_LINE = "r3l-learner done"
HANGS_LINE = "r3l-learner hangs"

PROGRESS = "progress.jsonl"
"""A line for every step and evaluation."""
LAST_SIGN = ".last-sign"
"""What the learner was doing when it last gave a sign of life."""
HANGS = "hangs.jsonl"
"""A line for every hang, written by the launcher, counted by the learner."""

STACKS = signal.SIGUSR2
"""Has a learner's process write every thread's stack to its log, also where its interpreter is
kept busy."""

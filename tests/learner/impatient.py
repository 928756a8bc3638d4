"""`r3l-learner` whose ranks wait for one another at most PATIENCE_S, from the first step's
preparations on, and which hang after HANG_S without a heartbeat. It warns of a silent buffer after
WARN_S. Its full garbage collections must have nothing much to look at."""

import gc
from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import _set_pg_timeout

from buffer.client import clients
from learner import watchdog
from learner.cli import main
from learner.loop import Training

PATIENCE_S, HANG_S, WARN_S = 8.0, 14.0, 5.0
begin = Training._begin


def impatient(training: Training, version: int) -> None:
    """Lower all deadlines when every rank is there, then begin."""
    assert gc.get_freeze_count() > 10_000, "a full collection would stop every rank"
    assert watchdog._watchdog is not None
    watchdog._watchdog.limit_s = HANG_S
    torch.distributed.barrier()
    _set_pg_timeout(timedelta(seconds=PATIENCE_S), torch.distributed.group.WORLD)
    begin(training, version)


if __name__ == "__main__":
    Training._begin = impatient
    clients.WARN_AFTER_S = WARN_S
    clients.BufferClient.__init__.__kwdefaults__["timeout_s"] = WARN_S
    main()

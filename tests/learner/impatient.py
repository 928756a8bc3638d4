"""`r3l-learner` whose ranks wait for one another at most PATIENCE_S, from the first step's
preparations on. Its full garbage collections must have nothing much to look at."""

import gc
from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import _set_pg_timeout

from learner.cli import main
from learner.loop import Training

PATIENCE_S = 4.0
begin = Training._begin


def impatient(training: Training, version: int) -> None:
    """Lower the deadline of all collectives when every rank is there, then begin."""
    assert gc.get_freeze_count() > 10_000, "a full collection would stop every rank"
    torch.distributed.barrier()
    _set_pg_timeout(timedelta(seconds=PATIENCE_S), torch.distributed.group.WORLD)
    begin(training, version)


if __name__ == "__main__":
    Training._begin = impatient
    main()

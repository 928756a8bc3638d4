"""`r3l-learner` whose ranks wait for one another at most PATIENCE_S, from the first step's
preparations on."""

from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import _set_pg_timeout

from learner.cli import main
from learner.loop import Training

PATIENCE_S = 4.0
begin = Training._begin


def impatient(training: Training, version: int) -> None:
    """Lower the deadline of all collectives when every rank is there, then begin."""
    torch.distributed.barrier()
    _set_pg_timeout(timedelta(seconds=PATIENCE_S), torch.distributed.group.WORLD)
    begin(training, version)


if __name__ == "__main__":
    Training._begin = impatient
    main()

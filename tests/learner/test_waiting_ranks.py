"""Ranks that wait for rank 0: as long as it says that it waits itself, and no longer."""

import logging
import os
import re
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.distributed_c10d import _set_pg_timeout

from buffer import Draw
from buffer.storage.stored_rows import DrawRow, Status
from launch.backends.process_commands import free_port
from learner import ranks
from r3l.codec import encode
from r3l.errors import RankLost
from tests.learner.ranks import on_two_ranks
from tests.r3l.training.fakes import explore_group


def wait(out: Path, *ports: int) -> None:
    """Writes OUT/<rank>.log: what a rank hears until rank 0 hangs, then until rank 1 does."""
    rank = int(os.environ["RANK"])
    logging.basicConfig(level=logging.INFO, filename=out / f"{rank}.log", force=True)
    ranks.WARN_AFTER_S = 1.0
    trainer: Any = SimpleNamespace(rank=rank, world=2, device=torch.device("cpu"))
    row = DrawRow(7, "r", "learner", 0, ("g0",), "fifo", 1.5, weights=(0.5,))
    group = explore_group((0.0, 1.0), (1.0, None))
    drawn = Draw.read(row, (Status("drawn", "", {}),), [encode(group)])
    for hangs, port in enumerate(ports):
        at = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=2)
        torch.distributed.barrier()
        _set_pg_timeout(timedelta(seconds=6), torch.distributed.group.WORLD)
        for _ in range(8 if rank == hangs == 0 else 0):
            time.sleep(1)
            ranks.still_waiting(trainer)
        draw = ranks.receive_draw(trainer) if rank else ranks.share_draw(trainer, drawn)
        assert draw is not None
        logging.info("rank %d has %s %s", rank, draw.row.groups[0], draw.row.weights)
        try:
            if rank == hangs:
                time.sleep(11)
            elif rank == 0:
                ranks.still_waiting(trainer)
            else:
                ranks.meet(trainer)
        except RankLost as error:
            logging.info(str(error))
        torch.distributed.destroy_process_group()


@pytest.mark.system
def test_ranks_wait_while_rank_0_reports_that_it_waits_and_name_a_rank_that_hangs(
    tmp_path: Path,
) -> None:
    on_two_ranks(wait, tmp_path, free_port(), free_port())
    own, other = ((tmp_path / f"{rank}.log").read_text() for rank in range(2))
    assert own.count("rank 0 has g0 (0.5,)") == other.count("rank 1 has g0 (0.5,)") == 2
    assert own.count("no message") == other.count("no message") == 1
    assert "rank 0 of 2: no message" in own
    assert "rank 1 of 2: no message" in other
    assert re.search(r"rank 1 has waited \d+ s for rank 0, .*actors", other)

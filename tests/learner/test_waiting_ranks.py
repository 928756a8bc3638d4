"""Ranks that wait for rank 0: as long as it says that it waits itself, and no longer."""

import os
import re
import subprocess
import sys

import pytest

from launch.backends.process_commands import free_port
from tests.learner.fakes import ROOT

PROGRAM = """
import logging, sys, time
from datetime import timedelta
from types import SimpleNamespace
import torch
from torch.distributed.distributed_c10d import _set_pg_timeout
from buffer import Draw
from buffer.storage.stored_rows import DrawRow, Status
from learner import ranks as exchange
from r3l.codec import encode
from r3l.errors import RankLost
from tests.r3l.training.fakes import explore_group

rank, *ports = map(int, sys.argv[1:])
logging.basicConfig(level=logging.INFO)
exchange.WARN_AFTER_S = 1.0
trainer = SimpleNamespace(rank=rank, world=2, device=torch.device("cpu"))
group = explore_group((0.0, 1.0), (1.0, None))
row = DrawRow(7, "r", "learner", 0, ("g0",), "fifo", 1.5, weights=(0.5,))
draw = Draw.read(row, (Status("drawn", "", {}),), [encode(group)])
for hangs, port in enumerate(ports):
    at = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=2)
    torch.distributed.barrier()
    _set_pg_timeout(timedelta(seconds=6), torch.distributed.group.WORLD)
    for _ in range(8 if rank == hangs == 0 else 0):
        time.sleep(1)
        exchange.still_waiting(trainer)
    if rank == 0:
        exchange.share_draw(trainer, draw)
    else:
        draw = exchange.receive_draw(trainer)
    print("rank", rank, "has", draw.row.groups[0], draw.row.weights, flush=True)
    try:
        if rank == hangs:
            time.sleep(11)
        elif rank == 0:
            exchange.still_waiting(trainer)
        else:
            exchange.meet(trainer)
    except RankLost as error:
        print(error, flush=True)
    torch.distributed.destroy_process_group()
"""


@pytest.mark.system
def test_ranks_wait_while_rank_0_reports_that_it_waits_and_name_a_rank_that_hangs() -> None:
    ports = [str(free_port()) for _ in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), *ports],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        (out, err), (other_out, other_err) = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], err + other_err
    assert out.count("rank 0 has g0 (0.5,)") == other_out.count("rank 1 has g0 (0.5,)") == 2
    assert out.count("no message") == other_out.count("no message") == 1
    assert "rank 0 of 2: no message" in out
    assert "rank 1 of 2: no message" in other_out
    assert re.search(r"rank 1 has waited \d+ s for rank 0, .*actors", other_err)

"""What rank 0 draws reaches the other ranks, over real process groups."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from learner.exchange import share_groups
from r3l.codec import encode
from tests.learner.groups import explore_group

DRAWS = [
    ([explore_group((0.0, 1.0), (1.0, None), group_id=f"g{i}", seed=i) for i in range(3)],
     [0.25, 1.0, 50.0]),
    ([], []),
]  # fmt: skip


def one_rank(rank: int, meeting: Path, answer: Connection) -> None:
    """Take part in two exchanges; only rank 0 knows what was drawn."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    trainer: Any = SimpleNamespace(rank=rank, world=2, device=torch.device("cpu"))
    for draw in DRAWS:
        groups, weights = share_groups(trainer, *(draw if rank == 0 else ((), ())))
        answer.send(([encode(group) for group in groups], list(weights)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_every_rank_has_the_groups_and_the_weights_that_rank_0_drew(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    ends = [spawn.Pipe(duplex=False) for _ in range(2)]
    ranks = [
        spawn.Process(target=one_rank, args=(rank, tmp_path / "meeting", ends[rank][1]))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    try:
        for groups, weights in DRAWS:
            expected = ([encode(group) for group in groups], weights)
            for receive, _ in ends:
                assert receive.poll(120) and receive.recv() == expected
    finally:
        for process in ranks:
            process.join(20)
            process.kill()

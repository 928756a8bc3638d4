"""Rank 0 draws groups, the other ranks receive them: encoded records as plain byte tensors.

    rank 0    draw … nothing ── draw … nothing ── draw … groups ─┬─► lengths, weights, bytes
                        │ WAIT            │ WAIT           GO_ON │
    others    meet ─────┴─────────────────┴──────────────────────┘

However long rank 0 waits for actors, no rank waits for another longer than a moment: rank 0 says
that it still waits. So each rank's watchdog notices that it, or one that it waits for, hangs.
torch's own object broadcast pickles; this one does not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from learner.step.trainer import Trainer
from learner.watchdog import sign
from r3l.codec import decode, encode
from r3l.errors import RankLost
from r3l.records import Group

log = logging.getLogger(__name__)

NOTHING, WAIT, GO_ON = 0, 1, 2
WARN_AFTER_S = 30.0


def still_waiting(trainer: Trainer) -> None:
    """Rank 0 waits for somebody else: tell the ranks that are in `meet`. To be called every few
    seconds; raises RankLost where one of them does not hear it in time."""
    sign("waiting for actors")
    if trainer.world > 1:
        _word(trainer, WAIT)


def meet(trainer: Trainer) -> None:
    """Every rank goes on together; until rank 0 comes the others hear `still_waiting`.

    Raises RankLost where a rank is not heard of for as long as torch's collectives wait.
    """
    if trainer.world == 1:
        return
    if trainer.rank == 0:
        _word(trainer, GO_ON)
        return
    began, said = time.monotonic(), WARN_AFTER_S
    while _word(trainer, NOTHING) == WAIT:
        sign("waiting for rank 0, which waits for actors")
        waited = time.monotonic() - began
        if waited > said:
            said = 2 * waited
            log.info(
                "rank %d waits %.0f s for rank 0, which waits for actors and says so",
                trainer.rank,
                waited,
            )


def share_groups(
    trainer: Trainer, groups: Sequence[Group], weights: Sequence[float]
) -> tuple[Sequence[Group], Sequence[float]]:
    """Every rank gets rank 0's `groups` and their importance `weights`; a collective. No groups
    means: stop."""
    if trainer.world == 1:
        return groups, weights
    meet(trainer)
    parts = [encode(group) for group in groups] if trainer.rank == 0 else []
    sizes = _broadcast(trainer, torch.tensor([len(p) for p in parts], dtype=torch.int64))
    shared = _broadcast(trainer, torch.tensor(weights, dtype=torch.float64)).tolist()
    blob = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if parts else None
    data = _broadcast(trainer, torch.empty(0, dtype=torch.uint8) if blob is None else blob)
    if trainer.rank == 0:
        return groups, weights
    raw, at, received = data.cpu().numpy().tobytes(), 0, []
    for size in sizes.tolist():
        received.append(decode(Group, raw[at : at + size]))
        at += size
    return received, shared


def _word(trainer: Trainer, word: int) -> int:
    """Rank 0's word on every rank: a sum to which the others add NOTHING. The sender of a
    broadcast need not wait for those who receive it, and would not notice that one hangs."""
    words = torch.tensor([word], dtype=torch.int64, device=trainer.device)
    try:
        torch.distributed.all_reduce(words)
        return int(words.item())
    except RuntimeError as error:
        whom = "another rank" if trainer.rank == 0 else "rank 0"
        raise RankLost(
            f"rank {trainer.rank} of {trainer.world}: no word from {whom}, which hangs or has "
            f"ended ({str(error).splitlines()[0]})",
            rank=trainer.rank,
        ) from error


def _broadcast(trainer: Trainer, values: torch.Tensor) -> torch.Tensor:
    """Rank 0's vector on every rank, whatever its length."""
    length = torch.tensor([len(values)], dtype=torch.int64, device=trainer.device)
    torch.distributed.broadcast(length, src=0)
    count = int(length.item())
    if trainer.rank != 0:
        values = torch.empty(count, dtype=values.dtype)
    values = values.to(trainer.device)
    if count:
        torch.distributed.broadcast(values, src=0)
    return values

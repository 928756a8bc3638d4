"""Makes all other ranks wait for rank 0, and tells them which batch rank 0 has drawn.

    rank 0       draw … nothing ── draw … nothing ── draw … batch ─┬─► which batch
                          │ WAIT            │ WAIT           GO_ON │
    other ranks  meet ────┴─────────────────┴──────────────────────┘

While rank 0 makes a request to the buffer, the other ranks wait in `meet`. A WAIT every few seconds
shows their watchdogs that rank 0 is alive. Rank 0 alone has the groups (learner.step.shared_rows).
"""

import logging
import time

import torch

from buffer import Draw
from buffer.wire.operations import DrawHead
from learner.step.collectives import broadcast
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from learner.watchdog import heartbeat
from r3l.codec import decode, encode
from r3l.errors import RankLost

log = logging.getLogger(__name__)

NOTHING, WAIT, GO_ON = 0, 1, 2
WARN_AFTER_S = 30.0


def still_waiting(trainer: DeepSpeedTrainer, doing: str = "waiting for actors") -> None:
    """Tells the ranks that wait in `meet` to keep waiting. Must be called every few seconds. Raises
    RankLost if a rank does not answer."""
    heartbeat(doing)
    if trainer.world > 1:
        _signal(trainer, WAIT)


def meet(trainer: DeepSpeedTrainer) -> None:
    """Waits until every rank has called `meet`. Raises RankLost if a rank is silent until torch's
    collectives time out."""
    if trainer.world == 1:
        return
    if trainer.rank == 0:
        _signal(trainer, GO_ON)
        return
    began, warn_at = time.monotonic(), WARN_AFTER_S
    while _signal(trainer, NOTHING) == WAIT:
        heartbeat("waiting for rank 0, which is waiting too")
        waited = time.monotonic() - began
        if waited > warn_at:
            warn_at = 2 * waited
            log.info(
                f"rank {trainer.rank} has waited {waited:.0f} s for rank 0, which waits for actors "
                "or the buffer"
            )


def share_draw(trainer: DeepSpeedTrainer, draw: Draw | None) -> Draw | None:
    """Tells the ranks that wait in `receive_draw` which batch was drawn. If `draw` is None, they
    stop. Returns the draw decoded, so that its records need not be kept."""
    if trainer.world > 1:
        meet(trainer)
        head = DrawHead() if draw is None else DrawHead(draw.row)
        broadcast(encode(head), trainer.device)
    return draw and draw.decoded()


def receive_draw(trainer: DeepSpeedTrainer) -> Draw | None:
    """Receives which batch rank 0 has drawn: the draw without its groups. Returns None if the run
    must stop."""
    meet(trainer)
    row = decode(DrawHead, broadcast(None, trainer.device)).row
    return None if row is None else Draw.read(row, (), ()).decoded()


def _signal(trainer: DeepSpeedTrainer, signal: int) -> int:
    """Returns rank 0's signal on every rank. Other ranks pass NOTHING (0), so the sum of all
    signals is rank 0's signal."""
    total = torch.tensor([signal], dtype=torch.int64, device=trainer.device)
    try:
        torch.distributed.all_reduce(total)  # a broadcast would not notice a hung receiver
        return int(total.item())
    except RuntimeError as error:
        whom = "another rank" if trainer.rank == 0 else "rank 0"
        raise RankLost(
            f"rank {trainer.rank} of {trainer.world}: no message from {whom}, which is hung or "
            f"has exited ({str(error).splitlines()[0]})",
            rank=trainer.rank,
        ) from error

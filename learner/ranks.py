"""Makes all other ranks wait for rank 0, and sends rank 0's draws to them.

    rank 0       draw … nothing ── draw … nothing ── draw … batch ─┬─► head, records
                          │ WAIT            │ WAIT           GO_ON │
    other ranks  meet ────┴─────────────────┴──────────────────────┘

While rank 0 makes a request to the buffer, the other ranks wait in `meet`. A WAIT every few seconds
shows their watchdogs that rank 0 is alive. A draw is sent as bytes, because torch would pickle it.
"""

import logging
import time
from itertools import accumulate

import torch

from buffer import Draw
from buffer.wire.operations import DrawHead
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from learner.watchdog import heartbeat
from r3l.codec import RECORD_LIMIT, decode, encode, pack, unpack
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


def share_draw(trainer: DeepSpeedTrainer, draw: Draw | None) -> None:
    """Sends `draw` to the ranks that wait in `receive_draw`. If `draw` is None, the ranks stop."""
    if trainer.world == 1:
        return
    meet(trainer)
    head = DrawHead() if draw is None else DrawHead(draw.row, draw.now)
    frames = [encode(head), *(draw.records if draw is not None else ())]
    _broadcast(trainer, pack({"sizes": [len(frame) for frame in frames]}, RECORD_LIMIT))
    _broadcast(trainer, b"".join(frames))


def receive_draw(trainer: DeepSpeedTrainer) -> Draw | None:
    """Receives the batch that rank 0 shares. Returns None if the run must stop."""
    meet(trainer)
    sizes, data = unpack(_broadcast(trainer), RECORD_LIMIT)["sizes"], _broadcast(trainer)
    frames = [data[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
    head = decode(DrawHead, frames[0])
    return None if head.row is None else Draw.read(head.row, head.now, frames[1:])


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


def _broadcast(trainer: DeepSpeedTrainer, sent: bytes | None = None) -> memoryview:
    """Sends bytes from rank 0 to every rank; returns them on every rank."""
    length = torch.tensor([len(sent or b"")], dtype=torch.int64, device=trainer.device)
    torch.distributed.broadcast(length, src=0)
    if sent is None:
        values = torch.empty(int(length.item()), dtype=torch.uint8, device=trainer.device)
    else:
        values = torch.frombuffer(bytearray(sent), dtype=torch.uint8).to(trainer.device)
    torch.distributed.broadcast(values, src=0)
    return memoryview(values.cpu().numpy()).toreadonly()

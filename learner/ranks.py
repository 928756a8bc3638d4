"""Followers, and how rank 0 shares a draw with them: the buffer's records, as byte tensors.

    rank 0      draw … nothing ── draw … nothing ── draw … batch ─┬─► head, weights, records
                         │ WAIT            │ WAIT           GO_ON │
    followers   meet ────┴─────────────────┴──────────────────────┘

While rank 0 waits for actors or for the buffer it says so every few seconds, so no rank waits long
for a word from another. Each rank's watchdog can then tell that this rank, or one that it waits
for, hangs. Therefore the others are in `meet` whenever rank 0 asks the buffer for something.
torch's own broadcast of objects pickles them; this one does not.
"""

from __future__ import annotations

import logging
import time
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from buffer import Draw
from learner.checkpoint import RunState
from learner.step.trainer import StepResult, Trainer
from learner.watchdog import heartbeat
from r3l.codec import decode
from r3l.errors import RankLost
from r3l.records import Group, Recalled
from r3l.settings.learner import LearnerConfig

log = logging.getLogger(__name__)

NOTHING, WAIT, GO_ON = 0, 1, 2
WARN_AFTER_S = 30.0


class Rank(Protocol):
    """What the learner's loop asks of its rank: of a learner.rank0.Rank0, which talks to the
    buffer, or of a Follower. All but `state` are collectives."""

    @property
    def stopped(self) -> bool:
        """Whether the run is to end at the next draw."""

    def begin(self, state: RunState) -> None:
        """Start from a state: publish its weights."""

    def draw(self, version: int) -> Draw | None:
        """The next batch; None if the run is to end."""

    def finish_step(self, draw: Draw, version: int, result: StepResult) -> None:
        """Commit the batch that made `version`, publish, report."""

    def skip_step(self, draw: Draw, version: int, result: StepResult) -> None:
        """Discard a batch whose loss or gradient is not finite."""

    def evaluate(self, version: int) -> None:
        """Start an evaluation."""

    def state(self, version: int) -> RunState:
        """What a checkpoint at `version` keeps of the run."""

    def end(self, version: int) -> None:
        """Wait for the last evaluation."""


class Follower:
    """A rank other than 0: takes part in the collectives that rank 0 leads."""

    stopped = False  # rank 0 alone is stopped

    def __init__(self, trainer: Trainer, config: LearnerConfig) -> None:
        self.trainer, self.config = trainer, config

    def begin(self, state: RunState) -> None:
        """Take part in publishing the first weights; before and after it wait for rank 0."""
        meet(self.trainer)
        self._publish()
        meet(self.trainer)

    def draw(self, version: int) -> Draw | None:
        """Wait for the batch that rank 0 drew; None if the run stops."""
        return receive_draw(self.trainer)

    def finish_step(self, draw: Draw, version: int, result: StepResult) -> None:
        """Wait until rank 0 has committed, take part in publishing the weights of `version`, wait
        until it has reported."""
        meet(self.trainer)
        if self.config.publishes(version):
            self._publish()
        meet(self.trainer)

    def skip_step(self, draw: Draw, version: int, result: StepResult) -> None:
        """Wait until rank 0 has discarded the batch."""
        meet(self.trainer)

    def evaluate(self, version: int) -> None:
        """Wait until rank 0 has asked for an evaluation."""
        meet(self.trainer)

    def state(self, version: int) -> RunState:
        """The version; rank 0 alone knows more."""
        return RunState(version)

    def end(self, version: int) -> None:
        """Wait for rank 0, which waits for the last evaluation."""
        meet(self.trainer)

    def _publish(self) -> None:
        """Rank 0 publishes; gathering sharded weights takes every rank."""
        for _ in self.trainer.published()[0]:
            pass


def still_waiting(trainer: Trainer, doing: str = "waiting for actors") -> None:
    """Rank 0 waits: say so to the ranks that are in `meet`. Call it every few seconds. Raises
    RankLost if a rank does not receive it in time."""
    heartbeat(doing)
    if trainer.world > 1:
        _word(trainer, WAIT)


def meet(trainer: Trainer) -> None:
    """Wait until every rank is here. Before rank 0 is, the others receive `still_waiting`.

    Raises RankLost if a rank is silent until torch's collectives time out.
    """
    if trainer.world == 1:
        return
    if trainer.rank == 0:
        _word(trainer, GO_ON)
        return
    began, said = time.monotonic(), WARN_AFTER_S
    while _word(trainer, NOTHING) == WAIT:
        heartbeat("waiting for rank 0, which waits itself")
        waited = time.monotonic() - began
        if waited > said:
            said = 2 * waited
            log.info(
                "rank %d has waited %.0f s for rank 0, which waits for actors or the buffer",
                trainer.rank,
                waited,
            )


def share_draw(trainer: Trainer, draw: Draw | None) -> None:
    """Send rank 0's batch to the ranks that are in `receive_draw`; None tells them to stop."""
    if trainer.world == 1:
        return
    meet(trainer)
    if draw is None:
        _send(trainer, torch.empty(0, dtype=torch.int64))
        return
    sizes = [len(record) for record in draw.records]
    head = [draw.draw_id, draw.version, len(draw.weights), *sizes]
    _send(trainer, torch.tensor(head, dtype=torch.int64))
    _send(trainer, torch.tensor(draw.weights, dtype=torch.float64))
    _send(trainer, torch.tensor(list("\0".join(draw.replayed).encode()), dtype=torch.uint8))
    _send(trainer, torch.frombuffer(bytearray().join(draw.records), dtype=torch.uint8))


def receive_draw(trainer: Trainer) -> Draw | None:
    """The batch that rank 0 shares, each group decoded from the buffer's record; None: stop."""
    meet(trainer)
    head = _receive(trainer, torch.int64).tolist()
    if not head:
        return None
    draw_id, version, count, *sizes = head
    weights = tuple(_receive(trainer, torch.float64).tolist())
    names = bytes(_receive(trainer, torch.uint8).tolist()).decode()
    replayed = tuple(names.split("\0")) if names else ()
    data = memoryview(_receive(trainer, torch.uint8).numpy()).toreadonly()
    ends = list(accumulate(sizes))
    records = [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    groups = [decode(Group, record) for record in records[:count]]
    recalled = [decode(Recalled, record) for record in records[count:]]
    return Draw(draw_id, groups, version, weights=weights, recalled=recalled, replayed=replayed)


def _word(trainer: Trainer, word: int) -> int:
    """Rank 0's word on every rank: a sum to which the others add NOTHING. (The sender of a
    broadcast does not wait for its receivers, so it would not notice one that hangs.)"""
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


def _send(trainer: Trainer, values: Tensor) -> None:
    """Broadcast a vector of any length."""
    length = torch.tensor([len(values)], dtype=torch.int64, device=trainer.device)
    torch.distributed.broadcast(length, src=0)
    if len(values):
        torch.distributed.broadcast(values.to(trainer.device), src=0)


def _receive(trainer: Trainer, dtype: torch.dtype) -> Tensor:
    """The vector that rank 0 sends, on the CPU."""
    length = torch.empty(1, dtype=torch.int64, device=trainer.device)
    torch.distributed.broadcast(length, src=0)
    values = torch.empty(int(length.item()), dtype=dtype, device=trainer.device)
    if len(values):
        torch.distributed.broadcast(values, src=0)
    return values.cpu()

"""Rank 0 draws groups, the other ranks receive them: encoded records as plain byte tensors.

torch's own object broadcast pickles; this one does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from learner.trainer import Trainer
from r3l.codec import decode, encode
from r3l.records import Group


def share_groups(
    trainer: Trainer, groups: Sequence[Group], weights: Sequence[float]
) -> tuple[Sequence[Group], Sequence[float]]:
    """Every rank gets rank 0's `groups` and their importance `weights`; a collective. No groups
    means: stop."""
    if trainer.world == 1:
        return groups, weights
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

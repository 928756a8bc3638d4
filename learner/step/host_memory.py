"""Copies tensors from a GPU to the host's memory, through page-locked memory, one piece after the
other: a GPU copies to ordinary memory page by page, which is slow."""

from __future__ import annotations

import torch
from torch import Tensor

PIECE = 64 << 20
"""Bytes of page-locked memory that are in use at a time."""


def on_host(tensor: Tensor) -> Tensor:
    """Returns the tensor itself if it is in the host's memory, otherwise a copy of it there."""
    return tensor.detach() if tensor.device.type == "cpu" else host_copy(tensor)


def host_copy(tensor: Tensor, piece: int = PIECE) -> Tensor:
    """Copies a tensor to new memory of the host, `piece` bytes at a time."""
    given = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = torch.empty(len(given), dtype=torch.uint8)
    # PyTorch keeps page-locked memory for the next call.
    staged = torch.empty(min(piece, len(given)), dtype=torch.uint8, pin_memory=given.is_cuda)
    for at in range(0, len(given), piece):
        part = given[at : at + piece]
        whole[at : at + piece] = staged[: len(part)].copy_(part)
    return whole.view(tensor.dtype).view(tensor.shape)

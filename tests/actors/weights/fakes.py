"""Weights of a small model, and an engine that holds them, for tests of weights on their way."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from actors.weights.staging import StagedWeights
from r3l.weights.manifest import Layout, Manifest
from r3l.weights.manifest import Piece as TensorPiece

Tensors = list[tuple[str, torch.Tensor]]


def some_weights(seed: int = 0, elements: int = 6_000_000) -> Tensors:
    torch.manual_seed(seed)
    return [
        ("a", torch.randn(elements).bfloat16()),
        ("b", torch.randn(3, 5).bfloat16()),
        ("empty", torch.ones(0)),
        ("c", torch.ones(1)),
    ]


def updated(weights: Tensors, share: float = 0.02) -> Tensors:
    """A small step: a share of the elements moves to the next number."""
    torch.manual_seed(1)
    moved = []
    for name, tensor in weights:
        bits = tensor.view(torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32)
        moved.append((name, (bits + (torch.rand(bits.shape) < share)).view(tensor.dtype)))
    return moved


def laid_out(weights: Tensors) -> bytes:
    layout = Layout.of((n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in weights)
    data = (t.contiguous().view(-1).view(torch.uint8).numpy() for _, t in weights)
    return put_together(layout, layout.cut(data)).tobytes()


def put_together(layout: Layout, chunks: Iterable[list[TensorPiece]]) -> np.ndarray:
    put = np.zeros(layout.total_bytes, dtype=np.uint8)
    for index, pieces in enumerate(chunks):
        for at, piece in pieces:
            put[layout.span(index)][at : at + len(piece)] = piece
    return put


def held(staged: StagedWeights | None) -> bytes:
    assert staged is not None
    return Path(staged.path).read_bytes()


class Engine:
    """Remembers what it was given to load."""

    def __init__(self) -> None:
        self.loaded: list[tuple[int, bytes]] = []

    async def load(self, path: str, manifest: Manifest) -> float:
        self.loaded.append((manifest.version, Path(path).read_bytes()))
        return 0.0

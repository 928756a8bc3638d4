"""Weights of a small model, and an engine that holds them, for tests of weights on their way."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from actors.weights.relay_member import FromRelay
from actors.weights.staging import StagedWeights
from actors.weights.subscriber import WeightSubscriber
from actors.weights.transport import OrFromPublisher
from learner.publishing.publisher import WeightPublisher
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


class Member(OrFromPublisher):
    """One engine's process, as it would be on a node."""

    def __init__(self, endpoint: str, base: Path, timeout_s: float = 10.0) -> None:
        subscriber = WeightSubscriber(endpoint, timeout_s=timeout_s)
        self.from_relay = FromRelay(subscriber, None, base)
        super().__init__(self.from_relay, subscriber)

    async def update(self) -> bytes:
        """Loads the newest version; returns its bytes."""
        manifest = await self.subscriber.latest()
        assert manifest is not None
        async with self.bring(manifest) as path:
            loaded = Path(path).read_bytes()
        self.subscriber.loaded = (manifest.origin, manifest.version)
        return loaded

    @property
    def failed(self) -> dict[str, int]:
        return dict(self.subscriber.metrics.weights_failed)


@asynccontextmanager
async def members(
    publisher: WeightPublisher, base: Path, count: int, timeout_s: float = 10.0
) -> AsyncIterator[list[Member]]:
    node = [Member(publisher.endpoint, base, timeout_s) for _ in range(count)]
    try:
        async with asyncio.timeout(120):
            yield node
    finally:
        for member in node:
            member.close()
            member.subscriber.close()


class FakeRay:
    """What r3l uses of the module `ray`, in this process. `lost`: its objects are gone."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.actors: dict[str, Any] = {}
        self.lost = False

    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(
            NodeAffinitySchedulingStrategy=lambda node, soft: f"on {node} only"
        )
    )

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "this node")

    def put(self, value: object) -> int:
        self.objects.append(value)
        return len(self.objects) - 1

    def get(self, asked: Any, timeout: float) -> Any:
        assert timeout > 0
        if isinstance(asked, list) and self.lost:
            raise self.exceptions.RayError("ObjectLostError: its owner has ended\nmore")
        return [self.objects[at] for at in asked] if isinstance(asked, list) else asked[0]

    def remote(self, kind: Any) -> Any:
        def start(name: str, scheduling_strategy: str, **_: Any) -> Any:
            assert scheduling_strategy == "on this node only"
            actor = kind()

            def call(method: str) -> Any:
                return SimpleNamespace(remote=lambda *given: (getattr(actor, method)(*given),))

            self.actors[name] = SimpleNamespace(put=call("put"), of=call("of"))
            return SimpleNamespace(remote=lambda: self.actors[name])

        return SimpleNamespace(options=start)

    def get_actor(self, name: str, namespace: str) -> Any:
        if name not in self.actors:
            raise ValueError(f"Failed to look up actor with name '{name}'")
        return self.actors[name]

"""Whole updates and updates at three learning rates, into one engine."""

import asyncio
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import zmq
import zmq.asyncio

from actors.weights.subscriber import WeightSubscriber
from benchmarks.weights.publisher import Metrics, Publisher

ANCHOR = "whole"
RATES = {ANCHOR: 1e-6, "lr 1e-6": 1e-6, "lr 1e-5": 1e-5, "lr 1e-4": 1e-4}
"""Learning rate of the step before each kind of update."""


@dataclass
class Updates:
    """Publishes with one process, fetches with one subscriber, loads into one policy."""

    publisher: Publisher
    subscriber: WeightSubscriber
    policy: Any

    async def step(self, rate: float = 1e-6) -> None:
        """Make an optimizer step."""
        await asyncio.to_thread(self.publisher.order, rate=rate)

    async def update(self, *, anchor: bool = False) -> Metrics:
        """Publish, fetch and load."""
        metrics: Metrics = await asyncio.to_thread(self.publisher.order, anchor=anchor)
        received = self.subscriber.metrics
        before = received.weights_full_bytes + received.weights_patch_bytes
        began = time.monotonic()
        manifest = await self.subscriber.latest()
        assert manifest is not None
        staged = await self.subscriber.fetch(manifest)
        metrics["fetch_s"] = time.monotonic() - began
        metrics["load_s"] = await self.policy.load(staged.path, manifest)
        metrics["loaded_at"] = time.monotonic()
        self.subscriber.loaded = (manifest.origin, manifest.version)
        metrics["received"] = float(
            received.weights_full_bytes + received.weights_patch_bytes - before
        )
        metrics["total_s"] = metrics["publish_s"] + metrics["fetch_s"] + metrics["load_s"]
        return metrics


async def raw_transfer(publisher: Publisher, size: int) -> float:
    """Seconds for `size` bytes over a plain PUSH/PULL pair, chunk by chunk."""
    with zmq.asyncio.Context.instance().socket(zmq.PULL) as pull:
        pull.connect(publisher.raw)
        began, left = time.monotonic(), size
        sending = asyncio.create_task(asyncio.to_thread(publisher.order, raw=True))
        while left > 0:
            left -= len((await pull.recv(copy=False)).buffer)
        took = time.monotonic() - began
        await sending
    return took


def medians(runs: list[Metrics]) -> Metrics:
    """Median of each metric."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


async def measure_updates(updates: Updates, size: int, repeat: int) -> None:
    """Print a line for each kind of update."""
    raw: list[float] = []
    runs: dict[str, list[Metrics]] = {name: [] for name in RATES}
    for _ in range(repeat):
        raw.append(await raw_transfer(updates.publisher, size))
        for name, rate in RATES.items():
            await updates.step(rate)
            runs[name].append(await updates.update(anchor=name == ANCHOR))
    print("update    sent     bytes  publish   fetch    load   total  of whole  without load")
    whole = medians(runs[ANCHOR])
    for name in runs:
        one = medians(runs[name])
        moved = (one["publish_s"] + one["fetch_s"]) / (whole["publish_s"] + whole["fetch_s"])
        print(
            f"{name:<8}{one['patch_density']:6.1%}  {one['received'] / size:8.2%} "
            f"{one['publish_s']:8.3f}{one['fetch_s']:8.3f}{one['load_s']:8.3f}"
            f"{one['total_s']:8.3f} {one['total_s'] / whole['total_s']:9.2f} {moved:13.2f}"
        )
    bound = median(raw) + whole["load_s"]
    print(
        f"\nwhole, {whole['total_s']:.3f} s, is {whole['total_s'] / bound:.2f} × raw ZeroMQ "
        f"({median(raw):.3f} s) plus one load ({whole['load_s']:.3f} s)"
    )

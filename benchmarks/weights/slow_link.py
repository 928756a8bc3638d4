"""Weights over a slow link: how often they arrive while versions are published at a steady pace."""

import asyncio
import time
from pathlib import Path
from statistics import mean

from actors.weights.subscriber import WeightSubscriber, follow
from benchmarks.weights.publisher import Publisher
from r3l.weights.manifest import Manifest

RATE = 1e-5  # learning rate of the step before each version


class Arrivals:
    """Stands in for an engine: notes when which version was loaded, and how old it was then."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.newest = 0
        self.seconds: list[float] = []
        self.lags: list[int] = []

    async def load(self, path: str, manifest: Manifest) -> float:
        """Note the load of a version."""
        self.seconds.append(time.monotonic() - self.began)
        self.lags.append(self.newest - manifest.version)
        return 0.0


async def measure_slow_link(folder: Path, seconds: float, every_s: float) -> None:
    """Publish a version every `every_s` for `seconds`, and print what a subscriber received."""
    publisher = Publisher(folder, None)
    size = int(publisher.order(anchor=True)["full_bytes"])
    subscriber, arrivals = WeightSubscriber(publisher.endpoint), Arrivals()
    arrivals.newest = 1
    following = asyncio.create_task(follow(subscriber, arrivals.load))
    while time.monotonic() < arrivals.began + seconds:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(publisher.order, rate=RATE)
        await asyncio.to_thread(publisher.order, anchor=False)
        arrivals.newest += 1
    following.cancel()
    metrics = subscriber.metrics
    received = metrics.weights_full_bytes + metrics.weights_patch_bytes
    first = f"the first after {arrivals.seconds[0]:.1f} s" if arrivals.seconds else "none"
    lag = f", {mean(arrivals.lags):.1f} versions late when loaded" if arrivals.lags else ""
    print(
        f"{size / 1e6:.1f} MB in a set, a version every {every_s:g} s: {len(arrivals.seconds)} "
        f"updates in {seconds:g} s, {first}{lag}; {received / 1e6:.1f} MB received; failed: "
        f"{dict(metrics.weights_failed)}"
    )
    publisher.close()
    subscriber.close()

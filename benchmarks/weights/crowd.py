"""Many subscribers at once.

They request, receive and check every chunk; they do not stage or load it, because on real hosts
each does that in its own memory.
"""

import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from actors.weights.staging import UNKNOWN, StagedWeights
from actors.weights.subscriber import WeightSubscriber
from benchmarks.weights.publisher import Metrics, Publisher, this_command
from benchmarks.weights.updates import medians, raw_transfer
from r3l.weights.chunks import check_chunk
from r3l.weights.manifest import Layout, Manifest

SUBSCRIBERS = 16


class Checked(StagedWeights):
    """Chunks that are checked and then forgotten."""

    def __init__(self, layout: Layout, origin: str) -> None:
        self.layout, self.origin = layout, origin
        self.versions = [UNKNOWN] * layout.num_chunks

    def close(self) -> None:
        """Nothing was kept."""

    def replace(self, index: int, manifest: Manifest, data: memoryview) -> None:
        check_chunk(np.frombuffer(data, dtype=np.uint8), manifest, index)


class Simulated(WeightSubscriber):
    """A subscriber that keeps nothing of what it receives."""

    def stage(self, manifest: Manifest) -> StagedWeights:
        self.staged = Checked(manifest.layout, manifest.origin)
        return self.staged


async def measure_crowd(publisher: Publisher, size: int, repeat: int) -> None:
    """Print the seconds that many subscribers take at once, alone and with another one that was
    stopped, as multiples of a raw transfer of the same minute."""
    before = publisher.resident()
    runs: list[Metrics] = []
    for _ in range(repeat):
        raw = await raw_transfer(publisher, size)
        free, peak = await _crowd(publisher, stopped=False)
        hindered, peak_hindered = await _crowd(publisher, stopped=True)
        of_raw = free / (SUBSCRIBERS * raw)
        peak = max(peak, peak_hindered)
        runs.append({"raw": raw, "free": free, "of_raw": of_raw, "hindered": hindered, "mb": peak})
    middle = medians(runs)
    print(
        f"{SUBSCRIBERS} subscribers: {middle['free']:.2f} s, {middle['of_raw']:.2f} × "
        f"({min(run['of_raw'] for run in runs):.2f} to {max(run['of_raw'] for run in runs):.2f}) "
        f"{SUBSCRIBERS} raw transfers ({middle['raw']:.3f} s); with a stopped one "
        f"{middle['hindered']:.2f} s; publisher {before:.0f} MB before, "
        f"{max(run['mb'] for run in runs):.0f} MB at most"
    )


async def _crowd(publisher: Publisher, stopped: bool) -> tuple[float, float]:
    """(seconds until SUBSCRIBERS new subscribers have everything, the publisher's largest
    resident memory in MB); `stopped`: while another subscriber is stopped half way."""
    frozen = None
    if stopped:
        keys = ["--keys", str(publisher.keys)] if publisher.keys else []
        command = [*this_command("--fetch", publisher.endpoint), *keys]
        frozen = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert frozen.stdout is not None
        frozen.stdout.readline()
        os.kill(frozen.pid, signal.SIGSTOP)
    peak = publisher.resident()

    async def watch_memory() -> None:
        nonlocal peak
        while True:
            peak = max(peak, publisher.resident())
            await asyncio.sleep(0.05)

    async def join() -> None:
        subscriber = Simulated(publisher.endpoint, timeout_s=120, keys=publisher.keys)
        manifest = await subscriber.latest()
        assert manifest is not None
        await subscriber.fetch(manifest)
        subscriber.close()

    watching, began = asyncio.create_task(watch_memory()), time.monotonic()
    await asyncio.gather(*(join() for _ in range(SUBSCRIBERS)))
    took = time.monotonic() - began
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    if frozen is not None:
        frozen.kill()
        frozen.wait()
    return took, peak


async def fetch_and_say(endpoint: str, keys: Path | None) -> None:
    """A subscriber that prints a line when its first chunk is there."""
    subscriber = WeightSubscriber(endpoint, keys=keys)
    manifest = await subscriber.latest()
    assert manifest is not None
    fetching = asyncio.create_task(subscriber.fetch(manifest))
    while not subscriber.metrics.weights_full_bytes:
        await asyncio.sleep(0.001)
    print("begun", flush=True)
    await fetching

"""The publisher's process: weights, optimizer steps, and the orders of the benchmark.

Publisher (benchmark) ── one JSON line an order ──► Learner (its own process)
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
import zmq

from learner.publishing.publisher import WeightPublisher
from r3l.run.process.memory import STEADY_MEMORY
from r3l.weights.journal import Journal

LEARNER_ENV = STEADY_MEMORY | os.environ
NEVER = 1 << 30
Metrics = dict[str, float]


class Learner:
    """The publishing side: float32 master weights and the direction of one AdamW step."""

    def __init__(self, folder: Path, keys: Path | None, journal: Journal | None = None) -> None:
        from safetensors.torch import load_file

        state = sorted(load_file(folder / "model.safetensors").items())
        self.master = [(name, tensor.float()) for name, tensor in state]
        self.directions = [_adamw_direction(tensor) for _, tensor in self.master]
        service = keys / "service.json" if keys else None
        self.publisher = WeightPublisher(
            "tcp://127.0.0.1:0", anchor_every=NEVER, keys=service, journal=journal
        )
        self.version = 0

    def step(self, rate: float) -> Metrics:
        """Move the weights as an optimizer step at `rate` would."""
        for (_, tensor), direction in zip(self.master, self.directions, strict=True):
            tensor.sub_(direction, alpha=rate)
        return {}

    def publish(self, anchor: bool, dtype: torch.dtype = torch.bfloat16) -> Metrics:
        """Publish the weights as they are now."""
        weights = [(name, tensor.to(dtype)) for name, tensor in self.master]
        self.version += 1
        self.publisher.anchor_every = 1 if anchor else NEVER
        return self.publisher.publish(self.version, weights)

    def serve(self) -> None:
        """Obey orders, one JSON line each. The published bytes can also be pulled over a plain
        ZeroMQ socket."""
        raw: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        raw.bind("tcp://127.0.0.1:*")
        print(
            json.dumps([self.publisher.endpoint, raw.getsockopt_string(zmq.LAST_ENDPOINT)]),
            flush=True,
        )
        for line in sys.stdin:
            order = json.loads(line)
            metrics: Metrics = {}
            if "raw" in order:
                for chunk in filter(None, self.publisher._chunks):
                    raw.send(chunk.data.data, copy=False)
            elif "rate" in order:
                metrics = self.step(**order)
            else:
                metrics = self.publish(**order)
            print(json.dumps(metrics), flush=True)


def _adamw_direction(tensor: torch.Tensor) -> torch.Tensor:
    """The third AdamW step (β 0.9 and 0.95) of random gradients, for a learning rate of 1."""
    first, second = torch.zeros_like(tensor), torch.zeros_like(tensor)
    for _ in range(3):
        gradient = torch.randn_like(tensor)
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.05)
    return (first / (1 - 0.9**3)) / (second / (1 - 0.95**3)).sqrt()


class Publisher:
    """The publisher's process as the benchmark sees it."""

    def __init__(self, folder: Path, keys: Path | None) -> None:
        self.process = subprocess.Popen(
            [*this_command("--serve", str(folder)), *(["--keys", str(keys)] if keys else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=LEARNER_ENV,
            text=True,
        )
        self.keys = keys / "client.json" if keys else None
        self.endpoint, self.raw = self._read()

    def order(self, **order: Any) -> Any:
        """Have something done and wait for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._read()

    def resident(self) -> float:
        """Resident memory, MB."""
        return psutil.Process(self.process.pid).memory_info().rss / 1e6

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def this_command(*options: str) -> list[str]:
    """The command line that starts this benchmark with other options."""
    return [sys.executable, "-m", "benchmarks.weights", *options]

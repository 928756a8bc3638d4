"""What the benchmarks of the buffer share: a service of their own, and simulated attempts."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import numpy as np
import psutil

from buffer import BufferClient
from r3l.records import SlotResult, Trajectory, done

PROMPT = 24  # tokens that were not sampled


class Service:
    """A real `r3l-buffer serve` process on a free loopback port, ended on exit."""

    def __init__(self, folder: Path, *options: object) -> None:
        command = [sys.executable, "-m", "buffer.cli", "serve", "--store", str(folder)]
        self._process = subprocess.Popen(
            [*command, "--bind", "tcp://127.0.0.1:0", *map(str, options)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        if words[:2] != ["r3l-buffer", "ready"]:
            raise RuntimeError("the buffer service did not start; see above")
        self.endpoint = words[-1]
        self.process = psutil.Process(self._process.pid)
        self.client = BufferClient(self.endpoint, name="benchmark", timeout_s=60)

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time the service has used."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)


def attempt(slot: int, version: int, tokens: int) -> SlotResult:
    """A finished slot: one step of `tokens` tokens in all."""
    mask = np.ones(tokens, dtype=np.bool_)
    mask[:PROMPT] = False
    trajectory = Trajectory(
        slot=slot,
        token_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        step_spans=np.array([[PROMPT, tokens]], dtype=np.int32),
        step_versions=np.array([version], dtype=np.int32),
        step_newest_versions=np.array([version], dtype=np.int32),
        step_seconds=np.zeros(1, dtype=np.float32),
        reward=float(slot % 2),
        system="",
        observations=("task", "done"),
        actions=("answer",),
    )
    return done(trajectory)


def quantile(values: list[float], q: float) -> float:
    """The value below which a share q lies, by rank; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else 0.0

"""Where the learner's figures go: TensorBoard, and one JSON line a step for the launcher."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from learner.run_files import PROGRESS


class Reporter:
    """Writes `run/tensorboard` and `run/progress.jsonl`.

    `start`: the version training goes on from. Steps after it that an earlier learner reported
    are void: TensorBoard drops them, the progress file gets a line that says so. `evaluated`:
    versions whose evaluation is reported already.
    """

    def __init__(self, run: Path, start: int = 0) -> None:
        self.writer = SummaryWriter(
            str(run / "tensorboard"), purge_step=start + 1 if start else None, flush_secs=5
        )
        lines = _read(run / PROGRESS)
        self.evaluated = {line["step"] for line in lines if line["kind"] == "eval"}
        reached = max((line["step"] for line in lines if line["kind"] == "step"), default=start)
        self.progress = (run / PROGRESS).open("a", encoding="utf-8", buffering=1)
        if reached > start:
            self._line("again", start, {"reached": reached})

    def step(self, version: int, figures: dict[str, float], histograms: dict[str, Any]) -> None:
        """Record one optimizer step."""
        for name, value in figures.items():
            self.writer.add_scalar(name, value, version)
        for name, values in histograms.items():
            self.writer.add_histogram(name, values, version)
        self._line("step", version, figures)

    def count(self, name: str, version: int, value: int) -> None:
        """Record a counter that changed outside a finished step."""
        self.writer.add_scalar(name, value, version)

    def evaluation(self, version: int, result: dict[str, Any]) -> None:
        """Record one finished evaluation."""
        for name, value in result.items():
            self.writer.add_scalar(f"eval/{name}", value, version)
        self._line("eval", version, result)

    def close(self) -> None:
        """Flush everything."""
        self.writer.close()
        self.progress.close()

    def _line(self, kind: str, version: int, values: dict[str, Any]) -> None:
        line = {"kind": kind, "step": version, "time": time.time(), **values}
        self.progress.write(json.dumps(line) + "\n")


def _read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a progress file; a killed writer may have left half a line."""
    if not path.exists():
        return []
    whole, _, half = path.read_bytes().rpartition(b"\n")
    if half:
        with path.open("r+b") as file:
            file.truncate(len(whole) + bool(whole))
    return [json.loads(line) for line in whole.splitlines()]

"""What one optimizer step takes in the weight journal, in bytes and as a share of the model."""

import time
from pathlib import Path
from statistics import mean

import torch

from benchmarks.weights.publisher import Learner
from r3l.weights.journal import Journal

RATES = (1e-6, 1e-5, 2e-4)
DTYPES = (torch.bfloat16, torch.float32)


def measure_journal(folder: Path, steps: int) -> None:
    """Print a line for each learning rate and format; the first version, an anchor, is left out."""
    print("format    lr       bytes a step  of the model  append  rebuild")
    for dtype in DTYPES:
        for rate in RATES:
            journal = Journal(folder / f"journal-{dtype}-{rate}", versions=steps + 1)
            learner = Learner(folder, None, journal)
            learner.publish(anchor=True, dtype=dtype)
            sizes, seconds = list[float](), list[float]()
            for _ in range(steps):
                learner.step(rate)
                began = time.monotonic()
                metrics = learner.publish(anchor=False, dtype=dtype)
                seconds.append(time.monotonic() - began)
                sizes.append(metrics["journal_bytes"])
            learner.publisher.close()
            began = time.monotonic()
            journal.rebuild(steps + 1)
            rebuilt = time.monotonic() - began
            share = mean(sizes) / metrics["full_bytes"]
            print(
                f"{str(dtype).removeprefix('torch.'):<9} {rate:<8.0e} {mean(sizes):>12,.0f}"
                f"{share:>14.2%}{mean(seconds):>7.2f}s{rebuilt:>8.2f}s",
                flush=True,
            )
            for version in journal.held():
                journal.path(version).unlink()

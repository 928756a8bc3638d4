"""Lines of a progress file, made by hand, and damaged files."""

import os
import random
from collections.abc import Iterator

from r3l.run.files.progress_lines import EvalLine


def evaluation(step: int, success: float = 0.5, **metrics: float) -> EvalLine:
    """An evaluation of 8 tasks, unless `metrics` say otherwise."""
    measured = {"success": success, "reward": 0.25, "steps": 3.5, "tasks": 8.0, "failed": 0.0}
    return EvalLine(step, measured | metrics, time=1.0)


def flips(whole: bytes, few: int = 150) -> Iterator[bytes]:
    """A file's bytes with one flipped bit, so often; 5,000 times under `make soak`."""
    chance = random.Random(len(whole))
    for _ in range(5000 if os.environ.get("R3L_SOAK") else few):
        changed = bytearray(whole)
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        yield bytes(changed)

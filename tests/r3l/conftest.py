"""A maker of trajectories with given step lengths, shared by the tests of this room."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from r3l.records import Trajectory


def _trajectory(
    steps: Sequence[int] = (2, 3),
    *,
    prompt: int = 3,
    observation: int = 2,
    reward: float = 0.0,
    slot: int = 0,
    of: int = -1,
    pivot: int = -1,
    tokens: Sequence[int] | None = None,
    **more: Any,
) -> Trajectory:
    """`steps[k]` response tokens at step k; `observation` tokens between steps. `more`: fields."""
    spans, at = [], prompt
    for length in steps:
        spans.append((at, at + length))
        at += length + observation
    length = spans[-1][1]
    mask = np.zeros(length, dtype=np.bool_)
    for start, end in spans:
        mask[start:end] = True
    return Trajectory(
        slot=slot,
        token_ids=np.array(range(length) if tokens is None else tokens, dtype=np.int32),
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        step_spans=np.array(spans, dtype=np.int32),
        step_versions=np.zeros(len(steps), dtype=np.int32),
        step_newest_versions=np.zeros(len(steps), dtype=np.int32),
        step_seconds=np.zeros(len(steps), dtype=np.float32),
        reward=reward,
        system="be good",
        observations=tuple(f"observation {k}" for k in range(len(steps) + 1)),
        actions=tuple(f"action {k}" for k in range(len(steps))),
        of=of,
        pivot=pivot,
        **more,
    )


@pytest.fixture(scope="session")
def make_trajectory() -> Callable[..., Trajectory]:
    return _trajectory

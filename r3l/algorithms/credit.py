"""Credit: which tokens of an attempt are trained, and how much each weighs in the loss.

Shapes: L tokens, K steps. A mask is bool [L], True on the tokens that receive credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from r3l.records import Bool, Trajectory

Normalize = Literal["trajectory", "attempt", "token", "sum"]
NORMALIZE = (
    "mean over trajectories of the mean over their trained tokens (trajectory), of the sum over "
    "these divided by all response tokens (attempt) or by nothing (sum); or mean over all trained "
    "tokens (token)"
)


def pivot_mask(response_mask: npt.ArrayLike, step_spans: npt.ArrayLike, pivot: int) -> Bool:
    """bool [L]: False before the first response token of step `pivot`, response_mask after it.

    `response_mask` [L], True on sampled tokens; `step_spans` int [K, 2], (start, end) of each
    step's response. `pivot` −1 (no pivot) or 0 keeps every response token.
    Raises ValueError for a pivot outside −1..K−1 and for spans that overlap or leave 0..L.
    """
    mask, spans = np.asarray(response_mask), np.asarray(step_spans)
    if mask.ndim != 1 or not np.isin(mask, (0, 1)).all():
        raise ValueError(f"response_mask is {mask.dtype}{mask.shape}; it must be bool [L]")
    if spans.ndim != 2 or spans.shape[1] != 2 or spans.dtype.kind not in "iu":
        raise ValueError(f"step_spans is {spans.dtype}{spans.shape}; it must be int [K, 2]")
    edges = spans.astype(np.int64).ravel()
    if (np.diff(edges) < 0).any() or (edges < 0).any() or (edges > len(mask)).any():
        raise ValueError(f"step_spans overlap or reach past the sequence of {len(mask)} tokens")
    if not -1 <= pivot < len(spans):
        raise ValueError(f"pivot {pivot} of {len(spans)} steps; it must be -1..{len(spans) - 1}")
    mask = mask.astype(np.bool_)  # a copy
    if pivot > 0:
        mask[: spans[pivot, 0]] = False
    return mask


def group_masks(trajectories: Sequence[Trajectory], mask_prefix: bool = True) -> list[Bool]:
    """The credit mask, bool [L], of every trajectory of one group, in their order.

    A distilled trajectory is masked at its own pivot, and so is the base it came from: they
    share the prefix. A base with no retry keeps all its response tokens; without `mask_prefix` all
    trajectories do. A base with several retries is masked at the earliest pivot. Steps of a stored
    attempt, those before `start`, are never trained.
    """
    pivots: dict[int, int] = {}
    for child in trajectories:
        if child.role == "distilled":
            pivots[child.parent] = min(child.pivot, pivots.get(child.parent, child.pivot))
    masks = []
    for one in trajectories:
        pivot = one.pivot if one.role == "distilled" else pivots.get(one.slot, -1)
        first = max(pivot if mask_prefix else -1, one.extra.start)
        masks.append(pivot_mask(one.response_mask, one.step_spans, first))
    return masks


def by_step(values: npt.ArrayLike, trajectory: Trajectory) -> npt.NDArray[np.float64]:
    """float64 [L]: the value of its step on every response token, 0 elsewhere. `values` [K]."""
    steps, tokens = np.asarray(values, np.float64), np.zeros(len(trajectory.token_ids))
    if steps.shape != (trajectory.num_steps,):
        raise ValueError(f"{steps.shape} values for {trajectory.num_steps} steps")
    for (start, end), value in zip(trajectory.step_spans.tolist(), steps, strict=True):
        tokens[start:end] = value
    return tokens


def lengths(
    normalize: Normalize, trajectories: Sequence[Trajectory], masks: Sequence[Bool]
) -> list[int]:
    """|τ_i| of each trajectory: its trained tokens; for "attempt" all its response tokens."""
    if normalize == "attempt":
        masks = [pivot_mask(t.response_mask, t.step_spans, t.extra.start) for t in trajectories]
    return [int(mask.sum()) for mask in masks]


def token_weights(normalize: Normalize, lengths: Sequence[int]) -> list[float]:
    """Weight of each trained token of every kept trajectory of a batch, R of them, with
    `lengths[i]` = |τ_i|.

        trajectory, attempt    1 / (R · |τ_i|)    the mean over trajectories of 1/|τ_i| Σ_t
        token                  1 / Σ_j |τ_j|      the mean over all trained tokens
        sum                    1 / R              the mean over trajectories of Σ_t

    A trajectory of length 0 has weight 0 and counts in R.
    """
    if normalize == "token":
        return [1.0 / max(sum(lengths), 1)] * len(lengths)
    if normalize == "sum":
        return [1.0 / max(len(lengths), 1)] * len(lengths)
    return [1.0 / (len(lengths) * length) if length else 0.0 for length in lengths]

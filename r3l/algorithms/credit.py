"""Decides which tokens of an attempt receive credit, and how much each weighs in the loss.

Shapes: L tokens, K steps. A mask is bool [L], True on the tokens that receive credit.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from r3l.records import SUCCESS, Bool, Trajectory

Normalize = Literal["trajectory", "attempt", "group", "token", "sum"]
NORMALIZE = (
    "trajectory: each trajectory's sum over its trained tokens is divided by their number, then "
    "averaged over trajectories; attempt: divided by all its response tokens; sum: not divided; "
    "group: as attempt, but averaged in each group, then over groups (the R³L paper's equation); "
    "token: mean over all trained tokens"
)


def group_masks(trajectories: Sequence[Trajectory], mask_prefix: bool = True) -> list[Bool]:
    """Returns the credit masks of one group's trajectories. With `mask_prefix`, a retry and the
    attempt that it retries get no credit before the pivot. If an attempt has several retries, their
    earliest pivot counts for it. Steps that another group's attempt played, and steps before
    `Extra.start`, never get credit."""
    pivots: dict[int, int] = {}
    for child in trajectories:
        if child.of >= 0:
            pivots[child.of] = min(child.pivot, pivots.get(child.of, child.pivot))
    masks = []
    for trajectory in trajectories:
        parts = trajectory.pivot if trajectory.of >= 0 else pivots.get(trajectory.slot, -1)
        first = max(parts if mask_prefix else -1, trajectory.extra.start)
        if trajectory.origin is not None:
            first = max(first, trajectory.pivot)
        masks.append(trajectory.responses_from(first))
    return masks


def further_masks(trajectory: Trajectory, mask: Bool) -> list[Bool]:
    """Returns the credit masks of an attempt's further conversations. `mask`: mask of the main
    conversation. A retried base attempt gets no credit before the first trained step of the main
    conversation."""
    if not trajectory.extra.segments:
        return []
    first = int(np.argmax(mask[trajectory.step_spans[:, 0]]))
    retried = first > 0 and trajectory.of < 0
    return [
        each.responses_from(max(segment.start, retried and int((segment.after <= first).sum())))
        for segment, each in zip(
            trajectory.extra.segments, trajectory.conversations()[1:], strict=True
        )
    ]


def by_step(values: npt.ArrayLike, trajectory: Trajectory) -> npt.NDArray[np.float64]:
    """Gives every response token the value of its step: float64 [L], 0 elsewhere. `values`: [K]."""
    steps, tokens = np.asarray(values, np.float64), np.zeros(len(trajectory.token_ids))
    if steps.shape != (trajectory.num_steps,):
        raise ValueError(f"values have shape {steps.shape}; they must be [{trajectory.num_steps}]")
    for (start, end), value in zip(trajectory.step_spans.tolist(), steps, strict=True):
        tokens[start:end] = value
    return tokens


def lengths(
    normalize: Normalize, trajectories: Sequence[Trajectory], masks: Sequence[Bool]
) -> list[int]:
    """Returns the number |τ_i| of trained tokens of each trajectory, all conversations included. If
    `normalize` is "attempt" or "group", counts all response tokens from `Extra.start` on."""
    if normalize in ("attempt", "group"):
        masks = [trajectory.responses_from(trajectory.extra.start) for trajectory in trajectories]
    further = [
        sum(int(own.sum()) for own in further_masks(trajectory, mask))
        for trajectory, mask in zip(trajectories, masks, strict=True)
    ]
    return [int(mask.sum()) + more for mask, more in zip(masks, further, strict=True)]


def token_weights(
    normalize: Normalize,
    lengths: Sequence[int],
    groups: Sequence[object] = (),
    *,
    among: tuple[Sequence[int], Sequence[object]] | None = None,
) -> list[float]:
    """Returns c_i, the weight of each trained token of trajectory i. There are R trajectories and M
    groups. |τ_i| is `lengths[i]`, and |G_i| the size of group `groups[i]`.

        trajectory, attempt    1 / (R · |τ_i|)             the mean over trajectories of 1/|τ_i| Σ_t
        group                  1 / (M · |G_i| · |τ_i|)     this mean in each group, then averaged
        token                  1 / Σ_j |τ_j|               the mean over all trained tokens
        sum                    1 / R                       the mean over trajectories of Σ_t

    A trajectory of length 0 adds no loss but counts in R and |G|. Only "group" reads `groups`.
    `among`: lengths and groups of other trajectories, for which R, M, |G_i| and Σ_j |τ_j| are then
    computed.
    """
    counted, members = among or (lengths, groups)
    if normalize == "group":
        sizes = Counter(members)
        whole = [max(len(sizes) * sizes[group], 1) for group in groups]
        pairs = zip(whole, lengths, strict=True)
        return [1.0 / (size * length) if length else 0.0 for size, length in pairs]
    if normalize == "token":
        return [1.0 / max(sum(counted), 1)] * len(lengths)
    count = max(len(counted), 1)
    if normalize == "sum":
        return [1.0 / count] * len(lengths)
    return [1.0 / (count * length) if length else 0.0 for length in lengths]


def verified(base: Trajectory, retry: Trajectory, *, requires_success: bool = True) -> bool:
    """Whether a retry is a verified correction of its attempt:

        R(retry) > R(base), or both reach 1 and the retry takes fewer steps

    and, with `requires_success` (as in the released code of R³L), R(retry) ≥ 1.
    """
    if requires_success and retry.reward < SUCCESS:
        return False
    both_succeed = min(base.reward, retry.reward) >= SUCCESS
    return retry.reward > base.reward or (both_succeed and retry.num_steps < base.num_steps)

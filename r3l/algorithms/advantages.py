"""Advantages: how the rewards of one group become the weights of its trajectories.

Functions map rewards [G] to float64 [G]. Permuting a group permutes its advantages bit for bit. If
all rewards are equal, all advantages are exactly 0, except those of full successes in `amplified`
and `successes`. An empty group or a bad reward raises ValueError.
"""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from r3l.records import LARGEST_REWARD, SUCCESS

Float64 = npt.NDArray[np.float64]
MaxRule = Literal["success", "group_max"]
Std = Literal["population", "sample", "none"]

STD = (
    "what R − mean is divided by: the group's standard deviation as a population or as a sample, "
    "or none"
)


def checked_rewards(rewards: npt.ArrayLike) -> Float64:
    """Returns the rewards as float64 [G]. Raises ValueError if there are no rewards, or
    if a reward is not within ±LARGEST_REWARD."""
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"rewards have shape {values.shape}; they must be [G] with G >= 1")
    if not (abs(values) <= LARGEST_REWARD).all():  # NaN is not
        raise ValueError(f"rewards are {values}; they must be within ±{LARGEST_REWARD:g}")
    return values


def amplified(
    rewards: npt.ArrayLike,
    alpha: float = 3.0,
    *,
    max_rule: MaxRule = "success",
    max_advantage: float | None = None,
    std: Std = "none",
) -> Float64:
    """Computes R³L's positive amplification, float64 [G] (arXiv 2601.03715, Eq. 11, corrected by
    its authors). With s(τ) = R(τ) − mean:

        Â(τ) = α         if R(τ) ≥ 1
               α·s(τ)    if R(τ) < 1 and s(τ) ≥ 0
               s(τ)      if s(τ) < 0

    `max_rule="group_max"` is Eq. 11 in version 1 of the paper: the largest reward of the group gets
    α, and if all rewards are equal, all Â are 0. `max_advantage` replaces the α of the first line
    (1.0 in the released code). `std`: which standard deviation s is divided by, or none.
    """
    values = checked_rewards(rewards)
    s = normalized(values, std=std)
    amplified_s = np.where(s >= 0, alpha * s, s)
    top = alpha if max_advantage is None else max_advantage
    if max_rule == "success":
        return np.where(values >= SUCCESS, top, amplified_s)
    best = values.max()
    if values.min() == best:
        return np.zeros_like(values)
    return np.where(values == best, top, amplified_s)


def mean(rewards: npt.ArrayLike) -> float:
    """Computes the mean reward, rounded once; exactly the reward that all have."""
    values = checked_rewards(rewards)
    return float(values[0]) if values.min() == values.max() else math.fsum(values) / values.size


def centered(rewards: npt.ArrayLike) -> Float64:
    """Computes s = R − mean, float64 [G]; exactly 0 if all rewards are equal."""
    values = checked_rewards(rewards)
    return values - mean(values)


def leave_one_out(rewards: npt.ArrayLike) -> Float64:
    """Computes R minus the mean of the other rewards, float64 [G] (RLOO, arXiv 2402.14740). The
    result is 0 if G = 1."""
    s = centered(rewards)
    return s * (s.size / max(s.size - 1, 1))


def normalized(
    rewards: npt.ArrayLike, eps: float = 1e-6, *, std: Std = "population", factor: float = 1.0
) -> Float64:
    """Computes (R − mean) / (factor · std + eps), float64 [G] (GRPO, arXiv 2402.03300).

    std² is Σ(R − mean)² / G for "population", and Σ(R − mean)² / (G − 1) for "sample", as in
    torch.std. For "none" the result is (R − mean) / factor.
    """
    s = centered(rewards)
    if not s.any():
        return s
    if std == "none":
        return s / factor
    count = s.size if std == "population" else s.size - 1  # a group with contrast has G >= 2
    scale = factor * math.sqrt(math.fsum(s * s) / count) + eps
    return s / scale if scale > 0 else np.zeros_like(s)


def overlong_penalty(lengths: npt.ArrayLike, limit: int, buffer: int) -> Float64:
    """Computes DAPO's penalty for long responses, float64 [G] (Eq. 13 of arXiv 2503.14476).

    The penalty is (L_max − L_cache − |y|) / L_cache, clipped to [−1, 0]. |y| is a response's
    length, L_max is `limit`, L_cache is `buffer` > 0.
    """
    beyond = np.asarray(lengths, dtype=np.float64) - (limit - buffer)
    return -np.clip(beyond / buffer, 0.0, 1.0)


def successes(rewards: npt.ArrayLike) -> Float64:
    """Returns 1 where R ≥ 1, else 0, float64 [G] (RAFT)."""
    return (checked_rewards(rewards) >= SUCCESS).astype(np.float64)

"""Statistics of attempts: pass@k and confidence intervals of means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Interval = tuple[float, float]
Z_95 = 1.959963984540054
"""Standard deviations that hold 95 % of a normal distribution."""
RESAMPLES = 2000


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Probability that at least one of k attempts succeeds, unbiased from `attempts` ≥ k of which
    `successes` succeeded: 1 − C(n − c, k) / C(n, k) (Chen et al. 2021, §2.1).

    Raises ValueError unless 1 ≤ k ≤ attempts and 0 ≤ successes ≤ attempts.
    """
    if not 1 <= k <= attempts or not 0 <= successes <= attempts:
        raise ValueError(f"pass@{k} of {attempts} attempts with {successes} successes")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def wilson(mean: float, count: int, z: float = Z_95) -> Interval:
    """Wilson's score interval of a mean of `count` independent values in [0, 1].

    For shares it has its nominal coverage; for other values in [0, 1] it is never too narrow, since
    their variance is at most mean · (1 − mean). (0, 1) for no values.
    """
    if count == 0:
        return 0.0, 1.0
    spread = z * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    middle, scale = mean + z * z / (2 * count), 1 + z * z / count
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return (low if mean > 0 else 0.0), (high if mean < 1 else 1.0)  # exact instead of nearly 0 or 1


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """95 % percentile interval of the mean of independent values, from RESAMPLES resamples with
    replacement; the same seed gives the same interval. (nan, nan) for no values."""
    if not values:
        return math.nan, math.nan
    data = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(data), (RESAMPLES, len(data)))
    low, high = np.quantile(data[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)

"""Algorithms whose advantages are wrong, so that the policy's entropy sinks or grows whatever its
attempts earn."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from r3l.algorithms.advantages import Float64
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.rows import Advantages
from r3l.records import Trajectory


class Conform(Algorithm):
    """Favours what most attempts of a group say."""

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Returns 1 for the most common text, and −1 for the others."""
        said = [" ".join(attempt.actions) for attempt in attempts]
        ((most, _),) = Counter(said).most_common(1)
        return np.array([1.0 if text == most else -1.0 for text in said])


class Differ(Algorithm):
    """Favours what the policy found unlikely."""

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Returns how unlikely an attempt was, in standard deviations above the group's mean: the
        policy gradient of the entropy."""
        surprise: Float64 = np.array([-attempt.logprobs.sum() for attempt in attempts], np.float64)
        return np.asarray((surprise - surprise.mean()) / (surprise.std() + 1e-6))

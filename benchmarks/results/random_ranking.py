"""The control of R³'s ranking: truncated attempts in a random order, with the same rewards."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from r3l.algorithms.algorithm import Algorithm, EntropyRanking, Float64
from r3l.algorithms.published.r3 import R3Config, truncated_failures


class RandomRanking(R3Config):
    """R³ with ranks that are drawn."""

    def build(self) -> Algorithm:
        """That of R³, but for the order."""

        def rewards(earned: Float64, entropies: Mapping[int, Float64]) -> Float64:
            return shuffled(earned, entropies, ranking_max=self.ranking_max)

        return replace(super().build(), ranking=EntropyRanking(truncated_failures, rewards))


def shuffled(rewards: Float64, entropies: Mapping[int, Float64], *, ranking_max: float) -> Float64:
    """Rewards [G] in which the N truncated attempts have R_max·(1 − k/(N − 1)), k their places in
    an order that depends on nothing but chance; N = 1 gets 0. The same entropies draw the same."""
    shaped, count = rewards.copy(), len(entropies)
    drawn = b"".join(np.asarray(one).tobytes() for _, one in sorted(entropies.items()))
    order = np.random.default_rng(zlib.crc32(drawn)).permutation(count)
    for place, k in zip(sorted(entropies), order, strict=True):
        shaped[place] = ranking_max * (1 - k / (count - 1)) if count > 1 else 0.0
    return shaped

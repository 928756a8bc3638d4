"""The control of R³'s ranking: truncated attempts in a random order, with the same rewards."""

import zlib
from collections.abc import Sequence

import numpy as np

from r3l.algorithms.advantages import Float64
from r3l.algorithms.published.r3 import R3
from r3l.algorithms.shared.entropy_ranking import Entropies


class RandomRanking(R3):
    """R³ with ranks that are drawn. The same entropies draw the same."""

    def ranked(self, entropies: Sequence[Entropies]) -> Float64:
        count = len(entropies)
        drawn = b"".join(each.tobytes() for each in entropies)
        places = np.random.default_rng(zlib.crc32(drawn)).permutation(count)
        return self.ranking_max * (1 - places / (count - 1))

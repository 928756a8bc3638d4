"""RLSD (arXiv 2604.03128): reward decides the sign of a token's advantage, self-distillation its
size.

    Â_t = Â · clip(exp(sign(Â)·A_t), 1 − ε, 1 + ε)        A_t as in SDPO

A token that the advice makes likelier weighs more in a success and less in a failure.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import rows
from r3l.algorithms.advantages import Float64
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import Advantages
from r3l.algorithms.shared.re_reading import ReReading


class RLSD(ReReading):
    """RLSD, with GRPO's clipped ratio. Failures alone get advice, so that in a success every token
    keeps the advantage of its attempt."""

    name: Literal["rlsd"] = Field("rlsd", description="algorithm")
    size_limit: float = Field(
        0.2, ge=0, lt=1, description="ε, by which a token's advantage may differ, as a share"
    )

    def token_advantages(
        self, batch: Batch, found: Sequence[Advantages]
    ) -> Sequence[Sequence[Float64]]:
        """Scales the advantage of each token."""
        return [
            [self.sized(float(value), gap) for value, gap in zip(own, gaps, strict=True)]
            for own, gaps in zip(map(rows.plain, found), self.gaps(batch), strict=True)
        ]

    def sized(self, advantage: float, gap: Float64) -> Float64:
        """Returns the advantages of an attempt's tokens, float64 [L]. `gap`: A_t, float64 [L]."""
        limits = np.log1p([-self.size_limit, self.size_limit])
        sizes: Float64 = np.exp(np.clip(np.sign(advantage) * gap, *limits))
        return advantage * sizes

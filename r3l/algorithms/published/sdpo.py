"""SDPO, self-distillation policy optimization (arXiv 2601.20802): the policy that has read the
advice scores its own attempt, token by token.

    A_t = log π_g(y_t | x, advice, y_<t) − log π(y_t | x, y_<t)
    Â_t = (1 − λ)·Â + λ·A_t
    term = −min(r_t, 2)·Â_t·log π(y_t)        r_t = π/π_old, without a gradient

Â is the group's advantage. With a λ of 1 advice alone teaches.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from r3l.algorithms import losses, rows
from r3l.algorithms.advantages import Float64
from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import RatioCorrection, Terms, TokenBatch
from r3l.algorithms.rows import Advantages
from r3l.algorithms.shared.re_reading import ReReading


class SDPO(ReReading):
    """SDPO on sampled tokens. In an attempt without advice all tokens have (1 − λ)·Â."""

    name: Literal["sdpo"] = Field("sdpo", description="algorithm")
    distilled_share: float = Field(
        0.5, ge=0, le=1, description="λ, share of the teacher's A_t in an advantage"
    )
    ratio_correction: RatioCorrection = Field(
        "token_truncate",
        description="weights for tokens that another policy sampled, as in other algorithms",
    )

    def token_advantages(
        self, batch: Batch, found: Sequence[Advantages]
    ) -> Sequence[Sequence[Float64]]:
        """Mixes the advantage of each attempt with the advantages of its tokens."""
        share = self.distilled_share
        return [
            [(1 - share) * value + share * gap for value, gap in zip(own, gaps, strict=True)]
            for own, gaps in zip(map(rows.plain, found), self.gaps(batch), strict=True)
        ]

    def token_loss(self, batch: TokenBatch) -> Terms:
        return self.corrected(losses.policy_gradient)(batch)

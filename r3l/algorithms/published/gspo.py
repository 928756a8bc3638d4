"""GSPO (arXiv 2507.18071): GRPO with one ratio per sequence."""

from typing import Literal

from pydantic import Field

from r3l.algorithms import losses
from r3l.algorithms.losses import Terms, TokenBatch
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm, kl_weight


class GSPO(RatioAlgorithm):
    """GSPO: the sequence's ratio is clipped to [1 − 3e-4, 1 + 4e-4]."""

    name: Literal["gspo"] = Field("gspo", description="algorithm")
    clip_low: float = Field(3e-4, ge=0, lt=1, description="ratios are clipped at 1 minus this")
    clip_high: float = Field(4e-4, ge=0, description="ratios are clipped at 1 plus this")
    kl_coef: float = kl_weight(0.01)

    def clipped_ratio(self, batch: TokenBatch) -> Terms:
        """Clips the ratio of each sequence."""
        return losses.gspo(batch, clip_low=self.clip_low, clip_high=self.clip_high)

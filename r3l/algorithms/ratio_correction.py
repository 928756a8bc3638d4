"""Ratio correction: gives a weight to each token that another policy sampled. An option of every
ratio loss.

Every term of the loss is multiplied by a weight w_t, which has no gradient. The loss's own ratio
becomes 1. w_t depends on the token's ratio r_t = π(y_t)/π_old(y_t), or on the sequence's ratio
ρ = Π_t r_t over its trained tokens:

    token_truncate       w_t = min(r_t, high)                     TIS (Yao et al. 2025)
    token_mask           w_t = r_t if low ≤ r_t ≤ high, else 0    IcePop (arXiv 2510.18855)
    sequence_truncate    w_t = min(ρ, high)
    sequence_mask        w_t = ρ if ρ ≤ high, else 0              MIS (Liu et al. 2025)

A distilled row has r_t = 1 (r3l.algorithms.losses.TokenBatch).
"""

from functools import partial
from typing import Self

from pydantic import Field, model_validator

from r3l.algorithms.advantages import STD, Std
from r3l.algorithms.algorithm import AlgorithmConfig
from r3l.algorithms.losses import RatioCorrection, TokenLoss, ppo_clip, ratio_corrected


class RatioCorrectedConfig(AlgorithmConfig):
    """The common settings of all algorithms with a ratio loss."""

    std: Std = Field("population", description=STD)
    ratio_correction: RatioCorrection = Field(
        "none",
        description="weights for tokens that another policy sampled, instead of the loss's own "
        "ratio: truncated (TIS) or masked (IcePop) ratios of tokens, or of sequences (masked: MIS)",
    )
    ratio_correction_low: float = Field(
        0.5, ge=0, le=1, description="ratio below which token_mask drops a token"
    )
    ratio_correction_high: float | None = Field(
        None,
        ge=1,
        description="ratio beyond which a token or sequence is truncated or masked; unset: 5 for "
        "token_mask, else 2",
    )

    clip_low: float = Field(0.2, ge=0, lt=1, description="ratios are clipped at 1 minus this")
    clip_high: float = Field(0.2, ge=0, description="ratios are clipped at 1 plus this")

    @model_validator(mode="after")
    def _groups_have_a_spread(self) -> Self:
        if self.std != "none" and self.build().exploration.base_slots < 2:
            raise ValueError(
                f"std {self.std}: a group of one base attempt has no standard deviation; raise "
                "algorithm.group_size or set algorithm.std=none"
            )
        return self

    def ppo_clipped(self) -> TokenLoss:
        """Returns PPO's clipped loss on token ratios, with the configured ratio correction."""
        clip = partial(ppo_clip, clip_low=self.clip_low, clip_high=self.clip_high)
        return self.ratio_corrected(clip)

    def ratio_corrected(self, loss: TokenLoss) -> TokenLoss:
        """Returns `loss` with the ratio correction of these settings."""
        if self.ratio_correction == "none":
            return loss
        high = self.ratio_correction_high or (5.0 if self.ratio_correction == "token_mask" else 2.0)
        return partial(
            ratio_corrected,
            loss=loss,
            rule=self.ratio_correction,
            low=self.ratio_correction_low,
            high=high,
        )

"""Corrections for tokens that another policy sampled, as an option of every ratio loss.

With r_t = π(y_t)/π_old(y_t) and the sequence's ratio ρ = Π_t r_t over its trained tokens, both
without a gradient, every term of the loss is multiplied by a weight w_t. The loss's own ratio is
that to the policy itself, which is 1:

    token_truncate       w_t = min(r_t, high)             TIS (Yao et al. 2025)
    token_mask           w_t = r_t if low ≤ r_t ≤ high    IcePop (arXiv 2510.18855), else 0
    sequence_truncate    w_t = min(ρ, high)
    sequence_mask        w_t = ρ if ρ ≤ high, else 0      MIS (Liu et al. 2025)

A distilled row has r_t = 1 (r3l.algorithms.losses.TokenBatch.unguided).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from r3l.algorithms.algorithm import AlgorithmConfig
from r3l.algorithms.losses import MAX_LOG_RATIO, Terms, TokenBatch, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


class CorrectedConfig(AlgorithmConfig):
    """Settings of every algorithm with a ratio loss."""

    correction: Correction = Field(
        "none",
        description="weights for tokens that another policy sampled, in the place of the loss's "
        "own ratio: truncated (TIS) or masked (IcePop) ratios of tokens, or of sequences (masked: "
        "MIS)",
    )
    correction_low: float = Field(
        0.5, ge=0, le=1, description="ratio below which token_mask drops a token"
    )
    correction_high: float = Field(
        2.0, ge=1, description="ratio beyond which correction truncates or drops"
    )

    def corrected(self, loss: TokenLoss) -> TokenLoss:
        """`loss` under the correction of these settings."""
        if self.correction == "none":
            return loss
        return partial(
            corrected,
            loss=loss,
            rule=self.correction,
            low=self.correction_low,
            high=self.correction_high,
        )


def corrected(
    batch: TokenBatch, *, loss: TokenLoss, rule: Correction, low: float, high: float
) -> Terms:
    """The terms of `loss` times w_t. Measures `correction_dropped`, the tokens of weight 0, and
    `correction_weight`, the mean of w_t."""
    own_BT = batch.logprobs_BT.detach()
    weights_BT = _weights(own_BT - batch.old_logprobs_BT, rule, low, high)
    terms_BT, measured = loss(replace(batch, old_logprobs_BT=own_BT))
    dropped_BT = (weights_BT == 0).to(weights_BT.dtype)
    measured |= {"correction_dropped": dropped_BT, "correction_weight": weights_BT}
    return weights_BT * terms_BT, measured


def _weights(log_ratio_BT: Tensor, rule: Correction, low: float, high: float) -> Tensor:
    """w_t of every token; log-ratios are 0 outside the mask."""
    if rule.startswith("sequence"):
        log_ratio_BT = log_ratio_BT.sum(dim=1, keepdim=True).expand_as(log_ratio_BT)
    ratio_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if rule.endswith("truncate"):
        return ratio_BT.clamp(max=high)
    inside_BT = ratio_BT <= high
    if rule == "token_mask":
        inside_BT &= ratio_BT >= low
    return ratio_BT.masked_fill(~inside_BT, 0.0)

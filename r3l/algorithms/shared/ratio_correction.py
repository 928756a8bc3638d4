"""Ratio correction: gives a weight to each token that another policy sampled. An option of every
ratio loss.

Every term of the loss is multiplied by a weight w_t, which has no gradient. The loss's own ratio
becomes 1. w_t depends on the token's ratio r_t = π(y_t)/π_old(y_t), or on the sequence's ratio
ρ = Π_t r_t over its trained tokens:

    token_truncate       w_t = min(r_t, high)                     TIS (Yao et al. 2025)
    token_mask           w_t = r_t if low ≤ r_t ≤ high, else 0    IcePop (arXiv 2510.18855)
    sequence_truncate    w_t = min(ρ, high)
    sequence_mask        w_t = ρ if ρ ≤ high, else 0              MIS (Liu et al. 2025)

A distilled row, and one whose π_old is unknown, has r_t = 1 (r3l.algorithms.losses.TokenBatch).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from r3l.algorithms import advantages, losses, rows
from r3l.algorithms.advantages import STD, Float64, Std
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import RatioCorrection, Terms, TokenBatch, TokenLoss
from r3l.algorithms.queries import Query, Weights
from r3l.algorithms.rows import POLICY, Advantages, Row, keep_only
from r3l.records import Bool, Trajectory

if TYPE_CHECKING:
    from torch import Tensor


def kl_weight(default: float, kind: str = "k3", more: str = "") -> Any:
    """Makes the setting `kl_coef` with the given default."""
    meaning = f"weight of the {kind} KL to the reference model{more}; 0: no reference model"
    return Field(default, ge=0, description=meaning)


class RatioAlgorithm(Algorithm):
    """The base of algorithms with a ratio loss: standardised rewards, a clipped ratio, and a KL to
    a reference model."""

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
    kl_coef: float = kl_weight(0.0)

    @property
    def base_attempts(self) -> int:
        """How many attempts of a group are not retries."""
        return self.group_size

    @model_validator(mode="after")
    def _groups_have_a_spread(self) -> Self:
        if self.std != "none" and self.base_attempts < 2:
            raise ValueError(
                f"std {self.std}: a group of one base attempt has no standard deviation; raise "
                "algorithm.group_size or set algorithm.std=none"
            )
        return self

    @property
    def needs(self) -> tuple[Weights, ...]:
        return ("reference",) if self.kl_coef else ()

    def queries(self, batch: Batch) -> Sequence[Query]:
        """Asks for the reference model's log-probabilities, if there is a KL."""
        if not self.kl_coef:
            return ()
        return rows.reference_queries(batch, self.advantages(batch), self.credit_masks(batch))

    def rows(self, batch: Batch) -> list[Row]:
        """Makes the rows of one step. With a KL, a row of advantage 0 has a gradient too."""
        penalized = self.kl_coef > 0
        return rows.with_gradient(
            rows.weigh(self.policy_rows(batch), self.normalize), penalized=penalized
        )

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Returns (R − mean)/(std + 1e-6)."""
        return self.standardised(rewards)

    def standardised(self, rewards: Float64) -> Float64:
        """Returns (R − mean)/(std + 1e-6), [G]."""
        return advantages.normalized(rewards, std=self.std)

    def standardised_among(self, rewards: Float64, keep: Bool) -> Advantages:
        """Standardises the rewards of the attempts in `keep`, bool [G]. Leaves out the others."""
        values = np.zeros_like(rewards)
        if keep.any():
            values[keep] = self.standardised(rewards[keep])
        return keep_only(values, keep)

    def token_loss(self, batch: TokenBatch) -> Terms:
        """PPO's clipped loss on token ratios, with the configured ratio correction."""
        return self.corrected(self.clipped_ratio)(batch)

    def clipped_ratio(self, batch: TokenBatch) -> Terms:
        """PPO's clipped loss on token ratios."""
        return losses.ppo_clip(batch, clip_low=self.clip_low, clip_high=self.clip_high)

    def kl(self, batch: TokenBatch) -> Tensor:
        """Estimates the KL to the reference model, [B, T] in nats."""
        return losses.k3_kl(batch)

    def loss(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Returns the policy's part of the loss and, with a KL, the KL's part. Also measures
        `kl_reference`, and `loss_penalized`, the sum of both parts."""
        parts = {"policy": self.policy_loss(batch)}
        if self.kl_coef:
            own = batch.of(POLICY).masked()
            kl = own.total(self.kl(own))
            batch.measure("kl_reference", kl.detach())
            parts["kl"] = self.kl_coef * kl
        batch.measure("loss_penalized", sum(float(part.detach()) for part in parts.values()))
        return parts

    def corrected(self, loss: TokenLoss) -> TokenLoss:
        """Returns `loss` with the ratio correction of these settings."""
        if self.ratio_correction == "none":
            return loss
        high = self.ratio_correction_high or (5.0 if self.ratio_correction == "token_mask" else 2.0)
        return partial(
            losses.ratio_corrected,
            loss=loss,
            rule=self.ratio_correction,
            low=self.ratio_correction_low,
            high=high,
        )

"""RLOO (arXiv 2402.14740): REINFORCE with the other attempts' mean reward as the baseline. LOOP
(arXiv 2502.01600) has the same baseline, but PPO's clipped loss."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from r3l.algorithms import advantages, losses
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.credit import NORMALIZE, Normalize
from r3l.algorithms.published.grpo import RatioConfig, kl_weight


class RLOOConfig(RatioConfig):
    """Settings of RLOO, or of LOOP if `clip` is set. Neither divides by a deviation, so `std` has
    no effect."""

    name: Literal["rloo"] = Field("rloo", description="algorithm")
    clip: bool = Field(False, description="PPO's clipped ratio instead of log π; true is LOOP")
    kl_coef: float = kl_weight(0.0)
    normalize: Normalize = Field("sum", description=NORMALIZE)

    def build(self) -> Algorithm:
        """Builds RLOO: N base attempts; Â is R minus the mean of the other attempts' rewards."""
        loss = self.ppo_clipped() if self.clip else self.ratio_corrected(losses.policy_gradient)
        return replace(super().build(), estimator=advantages.leave_one_out, token_loss=loss)

"""RLOO (arXiv 2402.14740): REINFORCE with the other attempts' mean reward as the baseline. LOOP
(arXiv 2502.01600) has the same baseline, but PPO's clipped loss."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from r3l.algorithms import advantages, losses
from r3l.algorithms.advantages import Float64
from r3l.algorithms.credit import NORMALIZE, Normalize
from r3l.algorithms.losses import Terms, TokenBatch
from r3l.algorithms.rows import Advantages
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm
from r3l.records import Trajectory


class RLOO(RatioAlgorithm):
    """RLOO, or LOOP if `clip` is set. Neither divides by a deviation, so `std` has no effect."""

    name: Literal["rloo"] = Field("rloo", description="algorithm")
    clip: bool = Field(False, description="PPO's clipped ratio instead of log π; true is LOOP")
    normalize: Normalize = Field("sum", description=NORMALIZE)

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Returns R minus the mean of the other attempts' rewards."""
        return advantages.leave_one_out(rewards)

    def token_loss(self, batch: TokenBatch) -> Terms:
        loss = self.clipped_ratio if self.clip else losses.policy_gradient
        return self.corrected(loss)(batch)

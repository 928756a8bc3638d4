"""The first-turn baseline of RLTF (arXiv 2602.02482, Reinforcement Learning from Text Feedback):
retries are compared with the plain attempts.

    plain attempt    Â(y₀) = R(y₀) − mean of the other plain attempts' rewards
    retry            Â(y₁) = R(y₁) − mean of all plain attempts' rewards

Retries do not enter the baseline, so they lower no plain attempt's advantage. There is no α and no
ratio. The row of a retry does not contain the guidance, as in R³L.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import advantages, credit, losses
from r3l.algorithms.advantages import Float64
from r3l.algorithms.facts import GroupFacts
from r3l.algorithms.losses import Terms, TokenBatch
from r3l.algorithms.rows import Advantages, keep_only
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry
from r3l.records import SUCCESS, Bool, Trajectory

NO_PLAIN = "no_plain_attempt"
"""The cause for which a group of retries only is replaced."""


class RLTF(ReflectAndRetry):
    """RLTF's first-turn baseline, with R³L's reflections, pivots and pivotal credit. A failure
    among N/2 attempts gets a reflection, and perhaps a retry from its pivot. Nothing is divided by
    a deviation or clipped."""

    name: Literal["rltf"] = Field("rltf", description="algorithm")
    std: Literal["none"] = Field("none", description="R − baseline is not divided")

    @property
    def base_attempts(self) -> int:
        return (self.group_size + 1) // 2

    def reflects_on(self, base: Trajectory) -> bool:
        return base.reward < SUCCESS

    def admits(self, group: GroupFacts) -> str:
        """Refuses a group that has no plain attempt, and so no baseline."""
        return NO_PLAIN if group.of and all(of >= 0 for of in group.of) else ""

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Compares each attempt with the plain ones of its group. Leaves out a group that has
        none."""
        plain = np.array([attempt.of < 0 for attempt in attempts], dtype=np.bool_)
        plain[len(plain) - recalled :] = False
        if not plain.any():
            return keep_only(np.zeros(len(rewards)), plain)
        values: Float64 = rewards - advantages.mean(rewards[plain])
        values[plain] = advantages.leave_one_out(rewards[plain])
        return values

    def masks(self, attempts: Sequence[Trajectory]) -> list[Bool]:
        """Pivotal credit: a retry and its attempt are trained from the pivot on."""
        return credit.group_masks(attempts)

    def token_loss(self, batch: TokenBatch) -> Terms:
        return self.corrected(losses.policy_gradient)(batch)

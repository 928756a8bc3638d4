"""R³ (arXiv 2601.19620): GRPO with cross-context replay. The other parts of R³ are left out
(docs/replay/recall.md).

The rule distinguishes correct attempts (R ≥ 1) from incorrect ones. Over a group's own and recalled
attempts, eq. 3 is Â = (R − mean) / (α·std + λ). α is a setting, λ is EPS.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from r3l.algorithms import advantages
from r3l.algorithms.facts import GroupFacts, History, RandomSource, StoredAttempt
from r3l.algorithms.rows import Advantages, Float64
from r3l.algorithms.shared import recall
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm, kl_weight
from r3l.records import Trajectory

EPS = 1e-6
"""λ of eq. 3."""


class R3(RatioAlgorithm):
    """R³. The paper gives no values for α and k; the defaults are ours."""

    name: Literal["r3"] = Field("r3", description="algorithm")
    kl_coef: float = kl_weight(0.01)
    recall_count: int | None = Field(
        None,
        ge=0,
        description="k, stored attempts with the other outcome that join a group of only failures "
        "or only successes; unset: 2, but at most a quarter of group_size; 0: no recall",
    )
    recall_age: int | None = Field(
        None, ge=0, description="largest age of a recalled attempt, versions; unset: any"
    )
    alpha: float = Field(
        2.0, gt=0, description="α, factor on the deviation of a group with recalled attempts"
    )

    def recalls(
        self, group: GroupFacts, history: History, random: RandomSource
    ) -> Sequence[StoredAttempt]:
        """Cross-context replay: recalls stored attempts with the other outcome."""
        count = self.recall_count
        if count is None:
            count = min(2, max(1, self.group_size // 4))
        if not count:
            return []
        return recall.opposing(group, history, random, count=count, max_age=self.recall_age)

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Standardises the rewards; with recalled attempts, by eq. 3."""
        if not recalled:
            return self.standardised(rewards)
        return advantages.normalized(rewards, EPS, std=self.std, factor=self.alpha)

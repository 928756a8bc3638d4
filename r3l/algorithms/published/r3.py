"""R³ (arXiv 2601.19620): GRPO with cross-context replay. The other parts of R³ are left out
(docs/replay/recall.md).

The rule distinguishes correct attempts (R ≥ 1) from incorrect ones. Over a group's own and recalled
attempts, eq. 3 is Â = (R − mean) / (α·std + λ). α is a setting, λ is EPS.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import advantages, recall
from r3l.algorithms.advantages import Std
from r3l.algorithms.algorithm import Algorithm, Float64
from r3l.algorithms.published.grpo import RatioConfig
from r3l.algorithms.recall import Recall
from r3l.records import Bool

EPS = 1e-6
"""λ of eq. 3."""


class R3Config(RatioConfig):
    """Settings of R³. The paper gives no values for α and k; the defaults are ours."""

    name: Literal["r3"] = Field("r3", description="algorithm")
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

    @property
    def recall(self) -> Recall | None:
        """Returns the rule of cross-context replay."""
        count = self.recall_count
        if count is None:
            count = min(2, max(1, self.group_size // 4))
        return partial(recall.opposing, count=count, max_age=self.recall_age) if count else None

    def build(self) -> Algorithm:
        """Builds R³: N base attempts and recalled attempts, all with the clipped ratio loss."""
        return replace(super().build(), mix_recalled=partial(mixed, alpha=self.alpha, std=self.std))


def mixed(rewards: Float64, recalled: Bool, *, alpha: float, std: Std) -> tuple[Float64, Bool]:
    """MixRecalled: keeps all attempts, with the advantages of eq. 3."""
    softened = advantages.normalized(rewards, EPS, std=std, factor=alpha)
    return softened, np.ones(len(rewards), dtype=np.bool_)

"""ARPO (arXiv 2505.16282): GRPO with stored successes. If no attempt of a group earned a reward, a
stored success replaces one attempt."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms.advantages import Float64
from r3l.algorithms.facts import GroupFacts, History, RandomSource, StoredAttempt
from r3l.algorithms.rows import Advantages
from r3l.algorithms.shared import recall
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm
from r3l.records import Trajectory


class ARPO(RatioAlgorithm):
    """ARPO. By default the upper clip is higher than in GRPO, and there is no KL."""

    name: Literal["arpo"] = Field("arpo", description="algorithm")
    clip_high: float = Field(0.3, ge=0, description="ratios are clipped at 1 plus this")
    recall_age: int | None = Field(
        None, ge=0, description="largest age of a stored success, versions; unset: any"
    )

    @property
    def looks_back(self) -> str:
        return "recalls stored successes"

    def recalls(
        self, group: GroupFacts, history: History, random: RandomSource
    ) -> Sequence[StoredAttempt]:
        """Draws one stored success for a group in which no attempt earned a reward."""
        if max(group.rewards) > 0:
            return []
        return recall.opposing(
            group, history, random, count=1, successes_only=True, max_age=self.recall_age
        )

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """For each recalled attempt, leaves out the worst of the group's own attempts. If several
        are equally bad, leaves out the last one."""
        own = range(len(rewards) - recalled)
        worst = sorted(own, key=lambda i: (rewards[i], -i))[:recalled]
        keep = np.ones(len(rewards), np.bool_)
        keep[worst] = False
        return self.standardised_among(rewards, keep)

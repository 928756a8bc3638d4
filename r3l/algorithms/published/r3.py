"""R³ (arXiv 2601.19620): GRPO with cross-context replay, and truncated responses ranked by their
entropy structure.

Replay tells correct attempts (R ≥ 1) from incorrect ones. Eq. 3 is Â = (R − mean) / (α·std + λ),
over all members of a group and the attempts it recalled. α and λ are settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import advantages, recall
from r3l.algorithms.advantages import SUCCESS, Std
from r3l.algorithms.algorithm import (
    Algorithm,
    EntropyRanking,
    Float64,
)
from r3l.algorithms.published.grpo import RatioConfig
from r3l.algorithms.recall import Recall
from r3l.records import Bool, Trajectory

EPS = 1e-6
"""λ of eq. 3."""


class R3Config(RatioConfig):
    """Settings of R³. The paper gives no values for α, k, p and R_max; the defaults are ours."""

    name: Literal["r3"] = Field("r3", description="algorithm")
    recall_count: int | None = Field(
        None,
        ge=0,
        description="k, stored attempts recalled into a group of only failures or only successes, "
        "with the other outcome; unset: 2, but at most a quarter of group_size; 0: no replay",
    )
    recall_age: int | None = Field(
        None, ge=0, description="age of a recalled attempt, versions; unset: any"
    )
    alpha: float = Field(
        2.0,
        gt=0,
        description="α, factor on the deviation of a group with recalled attempts",
    )
    ranking: bool = Field(
        True, description="rank the truncated responses of groups without a success by entropy"
    )
    peak_share: float = Field(
        0.2, gt=0, le=1, description="p, share of the tokens whose entropies make up the peak"
    )
    ranking_max: float = Field(
        0.5, ge=0, lt=1, description="R_max, reward of the truncated response that ranks first"
    )

    @property
    def recall(self) -> Recall | None:
        """Returns the rule of cross-context replay."""
        count = self.recall_count
        if count is None:
            count = min(2, max(1, self.group_size // 4))
        return partial(recall.opposing, count=count, max_age=self.recall_age) if count else None

    def build(self) -> Algorithm:
        """Builds R³: N base attempts with the clipped ratio loss, followed by recalled ones."""
        ranking = None
        if self.ranking:
            rewards = partial(ranked, peak_share=self.peak_share, ranking_max=self.ranking_max)
            ranking = EntropyRanking(truncated_failures, rewards)
        return replace(
            super().build(),
            ranking=ranking,
            mix_recalled=partial(mixed, alpha=self.alpha, std=self.std),
        )


def mixed(rewards: Float64, recalled: Bool, *, alpha: float, std: Std) -> tuple[Float64, Bool]:
    """MixRecalled: eq. 3 for all attempts."""
    softened = advantages.normalized(rewards, EPS, std=std, factor=alpha)
    return softened, np.ones(len(rewards), dtype=np.bool_)


def truncated_failures(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    """Selection: in a group without success, the attempts that did not terminate or had a response
    cut off."""
    failed = bool((rewards < SUCCESS).all())
    truncated = [one.finish != "terminated" or one.cut_responses > 0 for one in trajectories]
    return np.array(truncated, dtype=np.bool_) & failed


def ranked(
    rewards: Float64,
    entropies: Mapping[int, Float64],
    *,
    peak_share: float,
    ranking_max: float,
) -> Float64:
    """Replaces the rewards [G] of truncated responses by rewards for their rank.

    `entropies`: the token entropies of each of the N truncated responses. E_peak is the mean of the
    k = max(1, ⌊p·L⌋) largest, E_global the mean of all. A response dominates another if its E_peak
    is higher and its E_global lower. Responses are ranked by how many others they dominate, most
    first. Rank k gets R_max·(1 − k/(N − 1)); ties share the mean of their ranks' rewards, and N = 1
    gets 0.
    """
    shaped = rewards.copy()
    places, count = sorted(entropies), len(entropies)
    shape = {place: _structure(entropies[place], peak_share) for place in places}
    wins = {
        one: sum(
            shape[one][0] > shape[other][0] and shape[one][1] < shape[other][1] for other in places
        )
        for one in places
    }
    order = sorted(wins.values(), reverse=True)
    by_rank = [ranking_max * (1 - k / (count - 1)) for k in range(count)] if count > 1 else [0.0]
    for place in places:
        first = order.index(wins[place])
        last = first + order.count(wins[place])
        shaped[place] = sum(by_rank[first:last]) / (last - first)
    return shaped


def _structure(entropies: Float64, peak_share: float) -> tuple[float, float]:
    """Computes (E_peak, E_global) of a response."""
    peak = max(1, int(peak_share * len(entropies)))
    return float(np.sort(entropies)[-peak:].mean()), float(entropies.mean())

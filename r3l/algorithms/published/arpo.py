"""ARPO (arXiv 2505.16282): GRPO with stored successes. If no attempt of a group earned a reward, a
stored success replaces one attempt."""

from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import recall
from r3l.algorithms.algorithm import Algorithm, Estimator, Float64
from r3l.algorithms.published.grpo import RatioConfig, kl_weight
from r3l.algorithms.recall import GroupContext, RandomSource, Recall, StoredAttempt
from r3l.records import Bool


class ARPOConfig(RatioConfig):
    """Settings of ARPO. By default the upper clip is higher than in GRPO, and there is no KL."""

    name: Literal["arpo"] = Field("arpo", description="algorithm")
    clip_high: float = Field(0.3, ge=0, description="ratios are clipped at 1 plus this")
    kl_coef: float = kl_weight(0.0)
    recall_age: int | None = Field(
        None, ge=0, description="largest age of a stored success, versions; unset: any"
    )

    @property
    def recall(self) -> Recall:
        """Returns the rule that recalls one stored success for a group that earned nothing."""
        return partial(rescue, max_age=self.recall_age)

    def build(self) -> Algorithm:
        """Builds ARPO: N base attempts with the clipped ratio loss."""
        mix = partial(replacing, estimator=self.standardised())
        return replace(super().build(), mix_recalled=mix)


def rescue(
    context: GroupContext, source: RandomSource, *, max_age: int | None
) -> list[StoredAttempt]:
    """Draws one stored success for a group in which no attempt earned a reward."""
    if max(context.rewards) > 0:
        return []
    return recall.opposing(context, source, count=1, successes_only=True, max_age=max_age)


def replacing(rewards: Float64, recalled: Bool, *, estimator: Estimator) -> tuple[Float64, Bool]:
    """MixRecalled: for each recalled attempt, drops the worst of the group's own attempts. If
    several are equally bad, drops the last one."""
    keep = np.ones(len(rewards), dtype=np.bool_)
    own = [i for i in range(len(rewards)) if not recalled[i]]
    worst = sorted(own, key=lambda i: (rewards[i], -i))[: int(recalled.sum())]
    keep[worst] = False
    advantages = np.zeros_like(rewards)
    advantages[keep] = estimator(rewards[keep])
    return advantages, keep

"""SPEAR (arXiv 2509.22601): lets GRPO imitate its own recent successes.

A is an attempt's advantage in its replayed group. If A > 0 and Ã > 0, the attempt is trained on
with the advantage Â. All other attempts of the group are left out.

    Ã = R − b                                  the recalibrated advantage
    Â = γ(t) · Ã
    γ(t) = ½ (1 − cos(π · min(t / T, 1)))      as in the authors' code (`dp_actor.py`)

b is the median of the mean rewards of the batch's new groups. The paper uses a queue of recent
groups instead. t is the optimizer step, counted from 1. T is `imitation_steps`. The authors' code
is at github.com/TencentYoutuResearch/SPEAR.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms.algorithm import Algorithm, Float64, ReplayContext
from r3l.algorithms.published.grpo import RatioConfig, kl_weight
from r3l.records import Bool


class SPEARConfig(RatioConfig):
    """Settings of SPEAR. By default it has no KL."""

    name: Literal["spear"] = Field("spear", description="algorithm")
    kl_coef: float = kl_weight(0.0)
    imitation_steps: int = Field(
        200, ge=0, description="T, optimizer step at which the weight of replayed attempts is 1"
    )

    def build(self) -> Algorithm:
        """Builds SPEAR: GRPO that imitates good replayed attempts."""
        return replace(super().build(), replay_rule=partial(imitated, steps=self.imitation_steps))


def imitated(
    rewards: Float64, advantages: Float64, context: ReplayContext, *, steps: int
) -> tuple[Float64, Bool]:
    """ReplayRule: keeps the attempts with A > 0 and R − b > 0, weighted by γ(t)."""
    share = min((context.version + 1) / steps, 1.0) if steps else 1.0
    weight = 0.5 * (1 - math.cos(math.pi * share))
    recalibrated = rewards - context.baseline
    keep = (advantages > 0) & (recalibrated > 0)
    return np.where(keep, weight * recalibrated, 0.0), keep

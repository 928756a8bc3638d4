"""SPEAR (arXiv 2509.22601): GRPO that imitates its own recent successes.

A replayed group trains only attempts with a positive advantage A in their group that are still good
for the current policy (Ã > 0). b is the median over the mean rewards of the batch's new groups; the
paper takes the median over a queue of recent groups. t is the optimizer step, counted from 1. The
weight γ(t) is that of the authors' code (TencentYoutuResearch/SPEAR, `dp_actor.py`):

    Ã = R − b                       the recalibrated advantage
    Â = γ(t) · Ã   if A > 0 and Ã > 0, else the attempt is left out
    γ(t) = ½ (1 − cos(π · min(t / T, 1)))
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
    """Settings of SPEAR: GRPO's without the KL, and the warm-up of imitation."""

    name: Literal["spear"] = Field("spear", description="algorithm")
    kl_coef: float = kl_weight(0.0)
    imitation_steps: int = Field(
        200, ge=0, description="T, optimizer step at which the weight of replayed attempts is 1"
    )

    def build(self) -> Algorithm:
        """Builds SPEAR: N base attempts with the clipped ratio loss; good replayed attempts are
        imitated."""
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

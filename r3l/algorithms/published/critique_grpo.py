"""Critique-GRPO (arXiv 2506.03106): lets GRPO replace one failure by a refinement, made from a
free-text critique."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import advantages, losses
from r3l.algorithms.algorithm import Algorithm, Exploration, Float64
from r3l.algorithms.published.grpo import RatioConfig, kl_weight
from r3l.records import Bool, Trajectory

GAMMA = 0.1
"""γ of the shaping π/(π + γ) of refinements."""


class CritiqueGRPOConfig(RatioConfig):
    """Settings of Critique-GRPO. The defaults follow the R³L paper. For the original form, set
    `std: none`, `normalize: sum` and `clip: false`."""

    name: Literal["critique_grpo"] = Field("critique_grpo", description="algorithm")
    clip: bool = Field(True, description="clip the ratio of base attempts")
    kl_coef: float = kl_weight(0.0)

    def build(self) -> Algorithm:
        """Builds Critique-GRPO: N base attempts. Each failure is refined in a retry from step 0."""
        attempts = self.ppo_clipped() if self.clip else self.ratio_corrected(losses.importance)
        return replace(
            super().build(),
            exploration=Exploration(
                base_slots=self.group_size,
                distilled_slots=self.group_size,
                reflect_on="failures",
                guidance="critique",
                from_start=True,
                constrained=False,
            ),
            selection=one_refinement,
            token_loss=partial(losses.critique_grpo, attempts=attempts, gamma=GAMMA),
        )


def one_refinement(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    """Selection: keeps the base attempts, but replaces at most one failure by a refinement that
    earned more. Takes the best refinement, or the first among equals."""
    keep = np.array([trajectory.role == "base" for trajectory in trajectories], dtype=np.bool_)
    bases = {
        trajectory.slot: index
        for index, trajectory in enumerate(trajectories)
        if trajectory.role == "base"
    }
    better = [
        index
        for index, trajectory in enumerate(trajectories)
        if trajectory.role == "distilled"
        and trajectory.parent in bases
        and rewards[bases[trajectory.parent]] < min(rewards[index], advantages.SUCCESS)
    ]
    if better:
        best = max(better, key=lambda index: (rewards[index], -trajectories[index].slot))
        keep[best], keep[bases[trajectories[best].parent]] = True, False
    return keep

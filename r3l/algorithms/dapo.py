"""DAPO (arXiv 2503.14476): GRPO with a higher upper clip, a token mean and no KL, on groups whose
rewards differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms.algorithm import Algorithm, Exploration, Float64
from r3l.algorithms.grpo import RatioConfig
from r3l.records import Bool, Trajectory


class DAPOConfig(RatioConfig):
    """Settings of DAPO."""

    name: Literal["dapo"] = Field("dapo", description="algorithm")
    clip_high: float = Field(0.28, ge=0, description="how far a ratio counts above 1")
    kl_coef: float = Field(
        0.0, ge=0, description="weight of the k3 KL to the reference model; 0: no reference model"
    )

    def build(self) -> Algorithm:
        """N base attempts under the clipped ratio; groups without contrast are dropped."""
        return Algorithm(
            name=self.name,
            exploration=Exploration(self.group_size),
            estimator=self.standardised(),
            selection=with_contrast,
            token_loss=self.clipped(),
            normalize="token",
            kl_coef=self.kl_coef,
        )


def with_contrast(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    """Selection: the whole group if its rewards differ, else none of it."""
    return np.full(len(rewards), rewards.min() < rewards.max(), dtype=np.bool_)

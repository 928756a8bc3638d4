"""The implicit world model of Early Experience (arXiv 2510.08558). GRPO trains the policy, which
also learns to predict the environment's answers. No demonstrations are used."""

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.published.grpo import RatioConfig, kl_weight
from r3l.records import AuxSample, Bool, Group, Trajectory


class EarlyExperienceConfig(RatioConfig):
    """Settings of Early Experience. By default it has no KL."""

    name: Literal["early_experience"] = Field("early_experience", description="algorithm")
    kl_coef: float = kl_weight(0.0)
    sft_weight: float = Field(1.0, ge=0, description="λ, weight of the loss on next observations")

    def build(self) -> Algorithm:
        """Builds GRPO with the loss on next observations."""
        return replace(super().build(), extra=next_observations, sft_weight=self.sft_weight)


def next_observations(group: Group) -> list[AuxSample]:
    """Makes a training sample from each attempt. The policy learns to predict the environment's
    answers and the template's tokens around them."""
    return [AuxSample("observation", t.token_ids, _answers(t)) for t in group.trajectories]


def _answers(attempt: Trajectory) -> Bool:
    mask = ~attempt.response_mask
    mask[: attempt.step_spans[0, 0]] = False
    return np.asarray(mask)

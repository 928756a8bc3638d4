"""Critique-GRPO (arXiv 2506.03106): GRPO where one refinement, made from a free-text critique, may
replace a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import advantages
from r3l.algorithms.algorithm import (
    Algorithm,
    Exploration,
    Float64,
    Normalize,
    TokenBatch,
    TokenLoss,
    score_loss,
)
from r3l.algorithms.grpo import RatioConfig
from r3l.records import Bool, Trajectory

if TYPE_CHECKING:
    from torch import Tensor


class CritiqueGRPOConfig(RatioConfig):
    """Settings of Critique-GRPO."""

    name: Literal["critique_grpo"] = Field("critique_grpo", description="algorithm")
    kl_coef: float = Field(
        0.0, ge=0, description="weight of the k3 KL to the reference model; 0: no reference model"
    )
    normalize: Normalize = Field(
        "trajectory", description="mean over trajectories of token means, or over all tokens"
    )

    def build(self) -> Algorithm:
        """N base attempts; failures get a critique and are refined from step 0."""
        clipped = self.clipped(self.normalize)
        return Algorithm(
            name=self.name,
            exploration=Exploration(
                base_slots=self.group_size,
                distilled_slots=self.group_size,
                trigger="failure",
                guidance="critique",
                from_start=True,
                constrained=False,
            ),
            estimator=advantages.normalized,
            selection=one_refinement,
            token_loss=partial(refined_loss, clipped=clipped, normalize=self.normalize),
            normalize=self.normalize,
            kl_coef=self.kl_coef,
        )


def one_refinement(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    """Selection: the base attempts, but the best refinement that did better than the failure it
    refined in place of that failure; among equals the first."""
    keep = np.array([one.role == "base" for one in trajectories], dtype=np.bool_)
    bases = {one.slot: index for index, one in enumerate(trajectories) if one.role == "base"}
    better = [
        index
        for index, one in enumerate(trajectories)
        if one.role == "distilled"
        and one.parent in bases
        and rewards[bases[one.parent]] < min(rewards[index], advantages.SUCCESS)
    ]
    if better:
        best = max(better, key=lambda index: (rewards[index], -trajectories[index].slot))
        keep[best], keep[bases[trajectories[best].parent]] = True, False
    return keep


def refined_loss(
    batch: TokenBatch, *, clipped: TokenLoss, normalize: Normalize
) -> tuple[Tensor, dict[str, float]]:
    """Base attempts under the clipped ratio, refinements under π/(π + 0.1)."""
    refined_B1 = batch.is_distilled_B[:, None]
    loss, parts = clipped(replace(batch, mask_BT=batch.mask_BT & ~refined_B1))
    refinements = replace(batch, mask_BT=batch.mask_BT & refined_B1)
    refinement, _ = score_loss(refinements, name="shaped", gamma=0.1, normalize=normalize)
    return loss + refinement, parts

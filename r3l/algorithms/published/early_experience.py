"""The implicit world model of Early Experience (arXiv 2510.08558). GRPO trains the policy, which
also learns to predict the environment's answers. No demonstrations are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import losses, rows
from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.rows import IMITATION, Row
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm
from r3l.records import Bool, Trajectory

if TYPE_CHECKING:
    from torch import Tensor


class EarlyExperience(RatioAlgorithm):
    """Early Experience. By default it has no KL."""

    name: Literal["early_experience"] = Field("early_experience", description="algorithm")
    sft_weight: float = Field(1.0, ge=0, description="λ, weight of the loss on next observations")

    def rows(self, batch: Batch) -> list[Row]:
        """Adds a row for each attempt, which trains the environment's answers."""
        if not self.sft_weight:
            return super().rows(batch)
        answers = [
            rows.imitation(group, attempt.token_ids, next_observations(attempt), batch.weight(g))
            for g, group in enumerate(batch.groups)
            for attempt in group.trajectories
        ]
        return super().rows(batch) + rows.with_gradient(rows.weigh(answers, "token"))

    def loss(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Adds λ times the supervised loss. Also measures `loss_sft`."""
        supervised = losses.imitation_loss(batch)
        return super().loss(batch) | {"sft": self.sft_weight * supervised[IMITATION]}


def next_observations(attempt: Trajectory) -> Bool:
    """Marks the environment's answers and the template's tokens around them, bool [L]."""
    mask = ~attempt.response_mask
    mask[: attempt.step_spans[0, 0]] = False
    return np.asarray(mask)

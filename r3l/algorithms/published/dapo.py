"""DAPO (arXiv 2503.14476): GRPO with a higher upper clip, a token mean, a length penalty and no KL.
A group whose rewards are equal is replaced."""

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from r3l.algorithms import advantages
from r3l.algorithms.advantages import Float64
from r3l.algorithms.credit import NORMALIZE, Normalize
from r3l.algorithms.facts import GroupFacts
from r3l.algorithms.rows import Advantages, keep_only
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm
from r3l.records import Trajectory


class DAPO(RatioAlgorithm):
    """DAPO, as in its paper. The released code of R³L runs it with `filter: false` and
    `kl_coef: 0.01`."""

    name: Literal["dapo"] = Field("dapo", description="algorithm")
    clip_high: float = Field(0.28, ge=0, description="ratios are clipped at 1 plus this")
    normalize: Normalize = Field("token", description=NORMALIZE)
    filter: bool = Field(
        True, description="replace groups whose rewards are all equal until the batch is full"
    )
    overlong_limit: int = Field(
        20480, ge=1, description="L_max, response tokens from which the penalty is 1"
    )
    overlong_buffer: int = Field(
        4096, ge=0, description="L_cache, tokens up to L_max over which the penalty rises; 0: off"
    )

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.overlong_buffer > self.overlong_limit:
            raise ValueError(
                f"overlong_buffer {self.overlong_buffer} is more than overlong_limit "
                f"{self.overlong_limit}: every response would be penalised; lower overlong_buffer"
            )
        return self

    def admits(self, group: GroupFacts) -> str:
        """Refuses a group whose rewards are all equal."""
        flat = self.filter and min(group.rewards) == max(group.rewards)
        return "no_contrast" if flat else ""

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Standardises the rewards, after a penalty for long responses. Leaves out a group whose
        rewards are equal, unless stored attempts joined it."""
        shaped = rewards
        if self.overlong_buffer:
            lengths = [int(attempt.response_mask.sum()) for attempt in attempts]
            limit, buffer = self.overlong_limit, self.overlong_buffer
            shaped = rewards + advantages.overlong_penalty(lengths, limit, buffer)
        values = self.standardised(shaped)
        if not self.filter or recalled or rewards.min() < rewards.max():
            return values
        return keep_only(values, np.zeros(len(rewards), np.bool_))

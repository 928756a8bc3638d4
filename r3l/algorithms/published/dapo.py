"""DAPO (arXiv 2503.14476): GRPO with a higher upper clip, a token mean, a length penalty and no KL.
A group whose rewards are equal expires and is replaced (buffer.groups.completion)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from r3l.algorithms import advantages
from r3l.algorithms.algorithm import Algorithm, Float64, Shaping, keep_all, unshaped
from r3l.algorithms.credit import NORMALIZE, Normalize
from r3l.algorithms.published.grpo import RatioConfig, kl_weight
from r3l.records import Bool, Trajectory


class DAPOConfig(RatioConfig):
    """Settings of DAPO, as in its paper. The released code of R³L runs it with `filter: false` and
    `kl_coef: 0.01`."""

    name: Literal["dapo"] = Field("dapo", description="algorithm")
    clip_high: float = Field(0.28, ge=0, description="ratios are clipped at 1 plus this")
    kl_coef: float = kl_weight(0.0)
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

    @property
    def needs_contrast(self) -> bool:
        return self.filter

    def build(self) -> Algorithm:
        """Builds DAPO: N base attempts with the clipped ratio loss."""
        shaping: Shaping = unshaped
        if self.overlong_buffer:
            limit, buffer = self.overlong_limit, self.overlong_buffer
            shaping = partial(less_overlong, limit=limit, buffer=buffer)
        return replace(
            super().build(), selection=with_contrast if self.filter else keep_all, shaping=shaping
        )


def with_contrast(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    """Selection: keeps the whole group if its rewards differ, else drops it."""
    return np.full(len(rewards), rewards.min() < rewards.max(), dtype=np.bool_)


def less_overlong(
    rewards: Float64, trajectories: Sequence[Trajectory], *, limit: int, buffer: int
) -> Float64:
    """Shaping: adds an overlong penalty (0 or negative) to each attempt's reward."""
    lengths = [int(trajectory.response_mask.sum()) for trajectory in trajectories]
    return rewards + advantages.overlong_penalty(lengths, limit, buffer)

"""Reflect-GRPO, a baseline of the R³L paper: GRPO on attempts and their retries from step 0."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from r3l.algorithms import advantages
from r3l.algorithms.algorithm import Algorithm, Exploration
from r3l.algorithms.credit import Normalize
from r3l.algorithms.grpo import RatioConfig


class ReflectGRPOConfig(RatioConfig):
    """Settings of Reflect-GRPO."""

    name: Literal["reflect_grpo"] = Field("reflect_grpo", description="algorithm")
    constrained_reflection: bool = Field(
        True, description="decode reflections under their JSON schema"
    )
    normalize: Normalize = Field(
        "trajectory", description="mean over trajectories of token means, or over all tokens"
    )

    @model_validator(mode="after")
    def _group_splits(self) -> Self:
        if self.group_size % 2:
            raise ValueError(
                f"group_size {self.group_size}: reflect_grpo splits a group into as many base "
                "attempts as retries; set an even number"
            )
        return self

    def build(self) -> Algorithm:
        """N/2 base attempts; those that failed reflect and are done again from step 0."""
        return Algorithm(
            name=self.name,
            exploration=Exploration(
                base_slots=self.group_size // 2,
                distilled_slots=self.group_size // 2,
                trigger="failure",
                from_start=True,
                constrained=self.constrained_reflection,
            ),
            estimator=advantages.normalized,
            token_loss=self.clipped(),
            normalize=self.normalize,
            kl_coef=self.kl_coef,
        )

"""Reflect-GRPO, a baseline of the R³L paper: GRPO on N attempts and up to N/2 retries from step 0.

The retries are trained without their guidance, at a ratio of 1 (r3l.algorithms.losses.TokenBatch).
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from r3l.algorithms.algorithm import Algorithm, Exploration
from r3l.algorithms.published.grpo import RatioConfig


class ReflectGRPOConfig(RatioConfig):
    """Settings of Reflect-GRPO."""

    name: Literal["reflect_grpo"] = Field("reflect_grpo", description="algorithm")
    constrained_reflection: bool = Field(
        True, description="decode reflections under their JSON schema"
    )

    def build(self) -> Algorithm:
        """Builds Reflect-GRPO with N base attempts. A failure among the first ⌊N/2⌋ gets a
        reflection, and perhaps a retry from step 0."""
        return replace(
            super().build(),
            exploration=Exploration(
                base_slots=self.group_size,
                distilled_slots=self.group_size // 2,
                reflect_on="failures",
                from_start=True,
                constrained=self.constrained_reflection,
            ),
        )

"""GSPO (arXiv 2507.18071): GRPO with one ratio per sequence."""

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from r3l.algorithms import losses
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.published.grpo import RatioConfig


class GSPOConfig(RatioConfig):
    """Settings of GSPO: the sequence's ratio is clipped to [1 − 3e-4, 1 + 4e-4]."""

    name: Literal["gspo"] = Field("gspo", description="algorithm")
    clip_low: float = Field(3e-4, ge=0, lt=1, description="ratios are clipped at 1 minus this")
    clip_high: float = Field(4e-4, ge=0, description="ratios are clipped at 1 plus this")

    def build(self) -> Algorithm:
        """Builds GSPO: N base attempts, and a loss that clips the ratio of each sequence."""
        loss = partial(losses.gspo, clip_low=self.clip_low, clip_high=self.clip_high)
        return replace(super().build(), token_loss=self.ratio_corrected(loss))

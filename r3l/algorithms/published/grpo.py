"""GRPO (arXiv 2402.03300): standardised rewards, a clipped ratio, a KL to the reference model."""

from typing import Literal

from pydantic import Field

from r3l.algorithms.shared.ratio_correction import RatioAlgorithm, kl_weight


class GRPO(RatioAlgorithm):
    """GRPO: clip 0.2 on token ratios, KL 0.01."""

    name: Literal["grpo"] = Field("grpo", description="algorithm")
    kl_coef: float = kl_weight(0.01)

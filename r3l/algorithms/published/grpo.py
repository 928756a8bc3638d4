"""GRPO (arXiv 2402.03300), and the base class of its relatives' settings."""

from functools import partial
from typing import Any, Literal

from pydantic import Field

from r3l.algorithms import advantages
from r3l.algorithms.algorithm import Algorithm, Estimator, Exploration
from r3l.algorithms.ratio_correction import RatioCorrectedConfig


def kl_weight(default: float) -> Any:
    """Makes the setting `kl_coef` with the given default."""
    meaning = "weight of the k3 KL to the reference model; 0: no reference model"
    return Field(default, ge=0, description=meaning)


class RatioConfig(RatioCorrectedConfig):
    """Settings of GRPO and its relatives: a clipped ratio, and a KL to the reference model."""

    kl_coef: float = kl_weight(0.01)

    def standardised(self) -> Estimator:
        """Estimator: (R − mean)/(std + 1e-6)."""
        return partial(advantages.normalized, std=self.std)

    def build(self) -> Algorithm:
        """Builds GRPO: N base attempts with the clipped ratio loss. Subclasses change parts."""
        return Algorithm(
            name=self.name,
            exploration=Exploration(self.group_size),
            estimator=self.standardised(),
            token_loss=self.ppo_clipped(),
            normalize=self.normalize,
            kl_coef=self.kl_coef,
        )


class GRPOConfig(RatioConfig):
    """Settings of GRPO: standardised rewards, clip 0.2 on token ratios, KL 0.01."""

    name: Literal["grpo"] = Field("grpo", description="algorithm")

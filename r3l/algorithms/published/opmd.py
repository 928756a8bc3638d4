"""OPMD, online policy mirror descent in the R³L paper's form: a policy gradient on centred
rewards."""

from functools import partial
from typing import Literal

from pydantic import Field

from r3l.algorithms import advantages, losses
from r3l.algorithms.algorithm import Algorithm, AlgorithmConfig, Exploration


class OPMDConfig(AlgorithmConfig):
    """Settings of OPMD."""

    name: Literal["opmd"] = Field("opmd", description="algorithm")
    tau: float = Field(1.0, ge=0, description="the gradient is divided by 1 + tau")

    def build(self) -> Algorithm:
        """Builds OPMD: N base attempts with the loss −(R − mean) · log π / (1 + tau)."""
        return Algorithm(
            name=self.name,
            exploration=Exploration(self.group_size),
            estimator=advantages.centered,
            token_loss=partial(losses.policy_gradient, scale=1 / (1 + self.tau)),
            normalize=self.normalize,
        )

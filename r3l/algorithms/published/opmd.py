"""OPMD, online policy mirror descent in the R³L paper's form: a policy gradient on centred
rewards, −(R − mean) · log π / (1 + tau)."""

from typing import Literal

from pydantic import Field

from r3l.algorithms import losses
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.losses import Terms, TokenBatch


class OPMD(Algorithm):
    """OPMD: a policy gradient on R − mean, divided by 1 + tau."""

    name: Literal["opmd"] = Field("opmd", description="algorithm")
    tau: float = Field(1.0, ge=0, description="the gradient is divided by 1 + tau")

    def token_loss(self, batch: TokenBatch) -> Terms:
        return losses.policy_gradient(batch, scale=1 / (1 + self.tau))

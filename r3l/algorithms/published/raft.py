"""RAFT (arXiv 2304.06767): maximises the log-likelihood of full successes."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from r3l.algorithms import advantages, losses
from r3l.algorithms.algorithm import Algorithm, AlgorithmConfig, Exploration, Float64
from r3l.records import Bool, Trajectory


class RAFTConfig(AlgorithmConfig):
    """Settings of RAFT."""

    name: Literal["raft"] = Field("raft", description="algorithm")

    def build(self) -> Algorithm:
        """Builds RAFT: N base attempts; the full successes are imitated."""
        return Algorithm(
            name=self.name,
            exploration=Exploration(self.group_size),
            estimator=advantages.successes,
            selection=succeeded,
            token_loss=losses.policy_gradient,
            normalize=self.normalize,
        )


def succeeded(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    """Selection: keeps the full successes."""
    return rewards >= advantages.SUCCESS

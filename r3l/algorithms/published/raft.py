"""RAFT (arXiv 2304.06767): maximises the log-likelihood of full successes."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import advantages
from r3l.algorithms.advantages import Float64
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.rows import Advantages, keep_only
from r3l.records import SUCCESS, Trajectory


class RAFT(Algorithm):
    """RAFT. Imitates the full successes and leaves out all other attempts."""

    name: Literal["raft"] = Field("raft", description="algorithm")

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Leaves out failures, unless stored attempts joined the group."""
        keep = np.full(len(rewards), recalled > 0) | (rewards >= SUCCESS)
        return keep_only(advantages.successes(rewards), keep)

"""SPEAR (arXiv 2509.22601): lets GRPO imitate its own recent successes.

A is an attempt's advantage in its replayed group. If A > 0 and Ã > 0, the attempt is trained on
with the advantage Â. All other attempts of the group are left out.

    Ã = R − b                                  the recalibrated advantage
    Â = γ(t) · Ã
    γ(t) = ½ (1 − cos(π · min(t / T, 1)))      as in the authors' code (`dp_actor.py`)

b is the median of the mean rewards of the batch's new groups. The paper uses a queue of recent
groups instead. t is the optimizer step, counted from 1. T is `imitation_steps`. The authors' code
is at github.com/TencentYoutuResearch/SPEAR.
"""

import math
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import rows
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import Advantages, keep_only
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm


class SPEAR(RatioAlgorithm):
    """SPEAR: GRPO that imitates good replayed attempts. By default it has no KL."""

    name: Literal["spear"] = Field("spear", description="algorithm")
    imitation_steps: int = Field(
        200, ge=0, description="T, optimizer step at which the weight of replayed attempts is 1"
    )

    def advantages(self, batch: Batch) -> list[Advantages]:
        """Recalibrates the advantages of replayed groups."""
        found = super().advantages(batch)
        for number, group in enumerate(batch.groups):
            if group.group_id in batch.replayed and len(found[number]):
                rewards = np.array([attempt.reward for attempt in batch.attempts(group)])
                recalibrated = rewards - batch.baseline
                keep = (rows.plain(found[number]) > 0) & (recalibrated > 0)
                share = self.imitation_share(batch.version or 0)
                found[number] = keep_only(share * recalibrated, keep)
        return found

    def imitation_share(self, version: int) -> float:
        """Returns γ(t) of the step that follows `version`."""
        steps = self.imitation_steps
        share = min((version + 1) / steps, 1.0) if steps else 1.0
        return 0.5 * (1 - math.cos(math.pi * share))

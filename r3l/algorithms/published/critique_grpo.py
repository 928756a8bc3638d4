"""Critique-GRPO (arXiv 2506.03106): lets GRPO replace one failure by a refinement, made from a
free-text critique."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import losses
from r3l.algorithms.advantages import Float64
from r3l.algorithms.facts import LeaseFacts
from r3l.algorithms.losses import Terms, TokenBatch
from r3l.algorithms.rows import Advantages
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry
from r3l.records import SUCCESS, Bool, GroupPlan, ReflectionRecord, Trajectory
from r3l.rollout.exploration import Question, Verdict
from r3l.rollout.prompts import Prompts

GAMMA = 0.1
"""γ of the shaping π/(π + γ) of refinements."""


class CritiqueGRPO(ReflectAndRetry):
    """Critique-GRPO. The defaults follow the R³L paper. For the original form, set `std: none`,
    `normalize: sum` and `clip: false`."""

    name: Literal["critique_grpo"] = Field("critique_grpo", description="algorithm")
    clip: bool = Field(True, description="clip the ratio of base attempts")

    def plan(self, lease: LeaseFacts) -> GroupPlan:
        """Plans N attempts, and a slot for a refinement of each."""
        return GroupPlan(2 * self.group_size)

    def reflects_on(self, base: Trajectory) -> bool:
        return base.reward < SUCCESS

    def question(self, base: Trajectory, prompts: Prompts) -> Question:
        return prompts.question("critique", base)

    def answer_schema(self, base: Trajectory) -> dict[str, Any] | None:
        return None

    def read(self, text: str, complete: bool, base: Trajectory) -> Verdict:
        return Verdict()

    def triggers(self, thought: ReflectionRecord, base: Trajectory) -> bool:
        return True

    def pivot_of(self, thought: ReflectionRecord, base: Trajectory) -> int:
        return 0

    def guidance_of(self, thought: ReflectionRecord, base: Trajectory, prompts: Prompts) -> str:
        return prompts.critique_guidance(thought.text)

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Keeps the base attempts, but replaces at most one failure by a refinement that earned
        more."""
        keep = np.ones(len(rewards), np.bool_) if recalled else one_refinement(rewards, attempts)
        return self.standardised_among(rewards, keep)

    def token_loss(self, batch: TokenBatch) -> Terms:
        loss = self.corrected(self.clipped_ratio if self.clip else losses.importance)
        return losses.critique_grpo(batch, attempts=loss, gamma=GAMMA)


def one_refinement(rewards: Float64, attempts: Sequence[Trajectory]) -> Bool:
    """Returns which attempts are kept, bool [G]: the base attempts, but at most one failure is
    replaced by a refinement that earned more. That is the best refinement, or the first among
    equals."""
    keep = np.array([attempt.of < 0 for attempt in attempts], dtype=np.bool_)
    bases = {attempt.slot: i for i, attempt in enumerate(attempts) if attempt.of < 0}
    better = [
        i
        for i, attempt in enumerate(attempts)
        if attempt.of in bases and rewards[bases[attempt.of]] < min(rewards[i], SUCCESS)
    ]
    if better:
        best = max(better, key=lambda i: (rewards[i], -attempts[i].slot))
        keep[best], keep[bases[attempts[best].of]] = True, False
    return keep

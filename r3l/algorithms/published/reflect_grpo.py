"""Reflect-GRPO, a baseline of the R³L paper: GRPO on N attempts and up to N/2 retries from step 0.

The retries are trained without their guidance, at a ratio of 1 (r3l.algorithms.losses.TokenBatch).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from r3l.algorithms.facts import LeaseFacts
from r3l.algorithms.shared.ratio_correction import kl_weight
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry
from r3l.records import SUCCESS, GroupPlan, ReflectionRecord, Trajectory


class ReflectGRPO(ReflectAndRetry):
    """Reflect-GRPO. A failure among the first ⌊N/2⌋ attempts gets a reflection, and perhaps a retry
    from step 0."""

    name: Literal["reflect_grpo"] = Field("reflect_grpo", description="algorithm")
    kl_coef: float = kl_weight(0.01)
    constrained_reflection: bool = Field(
        True, description="decode reflections under their JSON schema"
    )

    def plan(self, lease: LeaseFacts) -> GroupPlan:
        return GroupPlan(self.group_size + self.group_size // 2)

    def retries(self, slots: int) -> Mapping[int, Sequence[int]]:
        attempts = min(self.group_size, slots)
        return {i: range(attempts + i, slots)[:1] for i in range(attempts)}

    def reflects_on(self, base: Trajectory) -> bool:
        return base.reward < SUCCESS

    def answer_schema(self, base: Trajectory) -> dict[str, Any] | None:
        return super().answer_schema(base) if self.constrained_reflection else None

    def pivot_of(self, thought: ReflectionRecord, base: Trajectory) -> int:
        return 0

"""Settings of low-rank adapters (learner.step.adapters)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from r3l.section import Section


class LoraConfig(Section):
    """Low-rank adapters, trained instead of all weights: alpha / rank · B·A is added to each target
    matrix, A with `rank` rows and B with as many columns."""

    rank: int = Field(0, ge=0, description="rank of the adapters; 0: none, all weights are trained")
    alpha: float = Field(32.0, gt=0, description="an adapter's product is scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        (), description="linear layers with an adapter, such as q_proj; unset: all but the head"
    )

    @model_validator(mode="after")
    def _targets_need_a_rank(self) -> Self:
        if self.targets and not self.rank:
            raise ValueError("targets are given but no rank, so all weights would be trained; "
                             "set rank, such as 16")  # fmt: skip
        return self

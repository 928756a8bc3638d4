"""The settings of an algorithm."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from r3l.algorithms import registry
from r3l.section import Section


class AlgorithmConfig(Section):
    """What is computed (ALGORITHM §2-7); every ablation of the paper is one value here."""

    name: str = Field("r3l", description="algorithm, by registry name")
    group_size: int = Field(8, ge=1, le=1024, description="N, attempts in a group")
    alpha: float = Field(3.0, gt=0, description="α, advantage of a full success")
    max_rule: Literal["success", "group_max"] = Field(
        "success", description="who receives α: full successes, or the group's best (Eq. 11 v1)"
    )
    max_advantage: float | None = Field(
        None,
        description="what a full success receives instead of α (released code: 1.0)",
    )
    credit: bool = Field(True, description="mask tokens before the pivot; off = 'w/o credit'")
    amplify: bool = Field(True, description="α > 1; off = 'w/o amplification' (α = 1, plain s)")
    reflect: bool = Field(True, description="reflect and retry; off = N base attempts")
    from_start: bool = Field(False, description="retry from step 0 whatever the reflection says")
    pivot_shift: int = Field(
        0, description="steps added to the pivot a reflection names, within the attempt"
    )
    guidance: bool = Field(True, description="show the retry its guidance")
    verified_requires_success: bool = Field(
        True, description="a correction is verified only if the retry fully succeeds"
    )
    constrained_reflection: bool = Field(
        True, description="decode reflections under their JSON schema"
    )
    normalize: Literal["trajectory", "token"] = Field(
        "trajectory", description="mean over trajectories of token means, or over all tokens"
    )
    sft_weight: float = Field(1.0, ge=0, description="λ, weight of the auxiliary loss")
    kl_coef: float | None = Field(
        None,
        ge=0,
        description="weight of the k3 KL to the reference model, 0: no reference; unset: the "
        "algorithm's own",
    )
    clip_low: float | None = Field(
        None, ge=0, lt=1, description="how far a ratio counts below 1; unset: the algorithm's own"
    )
    clip_high: float | None = Field(
        None,
        ge=0,
        description="how far a ratio counts above 1; unset: the algorithm's own",
    )
    tau: float = Field(1.0, ge=0, description="τ of OPMD")

    @model_serializer(mode="wrap")
    def _what_is_used(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out settings the algorithm does not use: reading them back would be an error."""
        values: dict[str, Any] = write(self)
        used = registry.uses(self)
        return {name: value for name, value in values.items() if name in used}

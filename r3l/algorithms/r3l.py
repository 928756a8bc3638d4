"""R³L: reflect, retry from the pivot, train with pivotal credit and positive amplification
(arXiv 2601.03715).

The exploration is in r3l.rollout.group, the credit in r3l.algorithms.credit.group_masks, the
amplification (Eq. 11) in r3l.algorithms.advantages.amplified.
"""

from functools import partial
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from r3l.algorithms import advantages, recall
from r3l.algorithms.advantages import STD, Std
from r3l.algorithms.algorithm import Algorithm, Estimator, Exploration, Float64, ReflectOn, SftPool
from r3l.algorithms.losses import k2_kl, policy_gradient
from r3l.algorithms.ratio_correction import RatioCorrectedConfig
from r3l.algorithms.recall import Recall
from r3l.records import Bool


class R3LConfig(RatioCorrectedConfig):
    """Settings of R³L. Each ablation of the paper can be set here.

    The paper's ablations `from start` and `no guidance` also switch off the credit: set
    `credit: false` too.
    """

    name: Literal["r3l"] = Field("r3l", description="algorithm")
    alpha: float = Field(3.0, gt=0, description="α, advantage of a full success")
    max_rule: Literal["success", "group_max"] = Field(
        "success", description="α is for full successes, or for the group's best (Eq. 11 of v1)"
    )
    max_advantage: float | None = Field(
        None, description="advantage of a full success instead of α (released code: 1.0)"
    )
    credit: bool = Field(
        True, description="mask the tokens before the pivot; false is the paper's w/o credit"
    )
    amplify: bool = Field(
        True,
        description="amplify advantages by α; false is the paper's w/o amplification, R − mean",
    )
    std: Std = Field("none", description=STD)
    reflect: bool = Field(
        True, description="reflect and retry; false is the paper's w/o reflect, N base attempts"
    )
    reflect_on: ReflectOn = Field(
        "all", description="base attempts that are reflected on: all, or failures (R < 1)"
    )
    gate: Literal["none", "measured"] = Field(
        "none",
        description="measured: fewer groups get retries while guided retries earn no more than "
        "further attempts",
    )
    from_start: bool = Field(False, description="retry from step 0 instead of the pivot")
    pivot_shift: int = Field(
        0, description="steps added to the pivot of a reflection, within the attempt"
    )
    guidance: bool = Field(True, description="show the retry its guidance")
    verified_requires_success: bool = Field(
        True, description="a correction is verified only if the retry fully succeeds"
    )
    praise: bool = Field(
        True,
        description="a success that its reflection recognises yields an auxiliary sample; the "
        "paper's text has only corrections",
    )
    constrained_reflection: bool = Field(
        True, description="decode reflections under their JSON schema"
    )
    outcome_first: bool = Field(
        False,
        description="reflections under their schema begin with the outcome; a warm-up teaches "
        "the other order",
    )
    clipped: bool = Field(
        False,
        description="PPO's clipped ratio to the sampling policy instead of log π; the ratio of "
        "distilled attempts is 1",
    )
    kl_coef: float = Field(
        0.0,
        ge=0,
        description="weight of the k2 KL to the reference model (released code: 0.001); 0: no "
        "reference model",
    )
    recall_count: int = Field(
        0,
        ge=0,
        description="stored successes that join a group without success (recall of R³); 0: none",
    )
    recall_age: int | None = Field(
        None, ge=0, description="largest age of a recalled attempt, versions; unset: any"
    )
    recall_alpha: float = Field(
        2.0, gt=0, description="α_off, divisor of the advantage of a recalled attempt"
    )
    sft_weight: float = Field(1.0, ge=0, description="λ, weight of the auxiliary loss")
    sft_share: float | None = Field(
        0.25,
        gt=0,
        description="limit of a step's auxiliary tokens, as a multiple of its attempts' tokens, "
        "both with contexts; null: all samples, as in the paper",
    )
    sft_pool: SftPool = Field(
        "separate",
        description="separate: auxiliary samples have a token mean of their own; shared: they are "
        "rows of advantage λ in the policy's mean (released code, with normalize: token)",
    )

    @model_validator(mode="after")
    def _group_splits(self) -> Self:
        if self.reflect and self.group_size % 2:
            raise ValueError(
                f"group_size {self.group_size}: half of a group are base attempts, and half are "
                "retries; set an even number"
            )
        return self

    def build(self) -> Algorithm:
        """Builds R³L: N/2 base attempts, retries, a policy gradient and an auxiliary loss."""
        amplified = partial(
            advantages.amplified,
            alpha=self.alpha,
            max_rule=self.max_rule,
            max_advantage=self.max_advantage,
            std=self.std,
        )
        plain = partial(advantages.normalized, std=self.std)
        estimator = amplified if self.amplify else plain
        loss = self.ppo_clipped() if self.clipped else self.ratio_corrected(policy_gradient)
        return Algorithm(
            name=self.name,
            exploration=self._exploration(),
            estimator=estimator,
            mix_recalled=partial(softer_recalled, estimator=estimator, alpha=self.recall_alpha),
            token_loss=loss,
            normalize=self.normalize,
            mask_prefix=self.credit,
            kl_coef=self.kl_coef,
            kl=k2_kl,
            sft_weight=self.sft_weight if self.reflect else 0.0,
            sft_share=self.sft_share,
            sft_pool=self.sft_pool,
        )

    @model_validator(mode="after")
    def _gain_can_be_measured(self) -> Self:
        if self.gate == "none":
            return self
        if not self.reflect:
            raise ValueError("gate=measured: needs retries, but algorithm.reflect=false makes none")
        if self.group_size < 4:
            raise ValueError(
                f"gate=measured: one base attempt is too few to measure a gain; set "
                f"algorithm.group_size to 4 or more, not {self.group_size}"
            )
        return self

    @property
    def gates_retries(self) -> bool:
        return self.gate == "measured"

    @property
    def recall(self) -> Recall | None:
        """Returns the rule that recalls stored successes for a group without success, or None if
        `recall_count` is 0."""
        if not self.recall_count:
            return None
        return partial(
            recall.opposing, count=self.recall_count, successes_only=True, max_age=self.recall_age
        )

    def _exploration(self) -> Exploration:
        if not self.reflect:
            return Exploration(self.group_size)
        return Exploration(
            base_slots=self.group_size // 2,
            distilled_slots=self.group_size // 2,
            reflect_on=self.reflect_on,
            guidance="reflection" if self.guidance else "none",
            from_start=self.from_start,
            pivot_shift=self.pivot_shift,
            constrained=self.constrained_reflection,
            outcome_first=self.outcome_first,
            aux=True,
            praise=self.praise,
            verified_requires_success=self.verified_requires_success,
        )


def softer_recalled(
    rewards: Float64, recalled: Bool, *, estimator: Estimator, alpha: float
) -> tuple[Float64, Bool]:
    """MixRecalled: divides the advantages of recalled attempts by α_off."""
    values = estimator(rewards)
    return np.where(recalled, values / alpha, values), np.ones_like(recalled)

"""What an algorithm is made of: three choices, as data and pure functions.

    AlgorithmConfig ──build()──► Algorithm
                                   how a group is explored       exploration, read by r3l.rollout
                                   how rewards become weights    advantages, masks, normalize
                                   which token loss is applied   loss

G: trajectories of one group. Importing this module does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from r3l.algorithms import credit, losses
from r3l.algorithms.advantages import checked_rewards
from r3l.algorithms.credit import Normalize
from r3l.algorithms.losses import TokenBatch, TokenLoss
from r3l.records import Bool, GroupPlan, Trajectory
from r3l.section import Section

if TYPE_CHECKING:
    from torch import Tensor

ReflectOn = Literal["all", "failures"]
SftPool = Literal["separate", "shared"]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Exploration:
    """How one explore group is made.

    `base_slots`: attempts without help; `distilled_slots`: retries, retry i of base i.
    `reflect_on`: the base attempts that get a reflection: "all", or the "failures", R < 1.
    `trigger`: those of them that are retried: if the "reflection" asks for it
    (r3l.rollout.reflection.Reflection.triggers_retry), or "always" if the reflection is usable.
    `guidance`: what the retry is told: the "reflection", a free-text "critique" or "none".
    `from_start`: retry from step 0 instead of the pivot; `pivot_shift`: steps added to the pivot,
    within the attempt.
    `aux`: verified corrections become auxiliary samples; `verified_requires_success`: only if the
    retry fully succeeds. `constrained`: reflections are decoded under their JSON schema.
    """

    base_slots: int
    distilled_slots: int = 0
    reflect_on: ReflectOn = "all"
    trigger: Literal["reflection", "always"] = "reflection"
    guidance: Literal["reflection", "critique", "none"] = "reflection"
    from_start: bool = False
    pivot_shift: int = 0
    constrained: bool = True
    aux: bool = False
    verified_requires_success: bool = True


Estimator = Callable[[Float64], Float64]
"""Rewards [G'] of the kept trajectories to their advantages [G']."""

Selection = Callable[[Float64, Sequence[Trajectory]], Bool]
"""Rewards [G] and trajectories of a group to bool [G], True for those that are trained on."""

Shaping = Callable[[Float64, Sequence[Trajectory]], Float64]
"""Rewards [G] and trajectories of a group to the rewards [G] that advantages are made of."""


def everyone(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    """Selection: every trajectory."""
    return np.ones(len(rewards), dtype=np.bool_)


def as_earned(rewards: Float64, trajectories: Sequence[Trajectory]) -> Float64:
    """Shaping: the rewards as they are."""
    return rewards


@dataclass(frozen=True)
class Algorithm:
    """One algorithm. Every field is a value or a pure function.

    `selection`, then `shaping`, then `estimator` turn the rewards of a group into advantages.
    `credit`: tokens before the pivot are masked.
    `normalize`: what the loss is a mean of (r3l.algorithms.credit.token_weights).
    `kl_coef`: weight of the KL to the reference model, 0 for none; `kl`: its estimate.
    `sft_weight`: λ, weight of the loss on auxiliary samples, 0 if there are none.
    `sft_pool`: auxiliary samples have their own mean over tokens, or are rows of the policy's mean.
    """

    name: str
    exploration: Exploration
    estimator: Estimator
    token_loss: TokenLoss
    normalize: Normalize = "trajectory"
    selection: Selection = everyone
    shaping: Shaping = as_earned
    credit: bool = False
    kl_coef: float = 0.0
    kl: Callable[[TokenBatch], Tensor] = losses.k3_kl
    sft_weight: float = 0.0
    sft_pool: SftPool = "separate"

    @property
    def needs_reference(self) -> bool:
        """Whether the learner must load a reference model."""
        return self.kl_coef > 0

    def plan(self) -> GroupPlan:
        """The slots of one group."""
        return GroupPlan(self.exploration.base_slots, self.exploration.distilled_slots)

    def advantages(
        self, rewards: npt.ArrayLike, trajectories: Sequence[Trajectory]
    ) -> tuple[Float64, Bool]:
        """(advantages float64 [G], keep bool [G]) of one whole group.

        A dropped trajectory (keep False) has advantage 0, is not trained on and counts in no
        mean; a kept one counts even if its advantage is 0. `rewards` [G] are usually those of the
        trajectories. Raises ValueError for bad rewards or lengths that differ.
        """
        values = checked_rewards(rewards)
        if len(values) != len(trajectories):
            raise ValueError(f"{len(values)} rewards for {len(trajectories)} trajectories")
        keep = self.selection(values, trajectories)
        advantages = np.zeros_like(values)
        if keep.any():
            advantages[keep] = self.estimator(self.shaping(values, trajectories)[keep])
        return advantages, keep

    def masks(self, trajectories: Sequence[Trajectory]) -> list[Bool]:
        """The trained tokens, bool [L], of every trajectory of one whole group."""
        return credit.group_masks(trajectories, self.credit)

    def loss(self, batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
        """(scalar loss, its parts) of kept trajectories.

        Losses and parts of micro-batches add up to those of the batch. Parts: `policy`, and, if
        the loss has them, `kl_reference` (nats, before its coefficient) and `clip_fraction`.
        The loss on auxiliary samples is r3l.algorithms.losses.sft times `sft_weight`, added by the
        caller. Raises ValueError if a reference is needed and missing.
        """
        batch = batch.masked().unguided()
        terms_BT, measured = self.token_loss(batch)
        total = batch.total(terms_BT)
        parts = {"loss_policy": float(total.detach())}
        parts |= {name: float(batch.total(values.detach())) for name, values in measured.items()}
        if self.needs_reference:
            kl = batch.total(self.kl(batch))
            total = total + self.kl_coef * kl
            parts["kl_reference"] = float(kl.detach())
        return total, parts


class AlgorithmConfig(Section):
    """The settings that every algorithm has. A subclass adds its own, with the published values
    as defaults, and builds the Algorithm."""

    name: str
    group_size: int = Field(
        8,
        ge=1,
        le=1024,
        description="N: base attempts of a group; r3l: N/2 and up to N/2 retries; reflect_grpo: N "
        "and up to N/2 retries; critique_grpo: N and up to N retries",
    )

    @property
    def needs_contrast(self) -> bool:
        """Whether a group whose rewards are all equal is replaced by another, so that every group
        of a batch has contrast. The buffer service and the learner read it."""
        return False

    @abstractmethod
    def build(self) -> Algorithm:
        """The algorithm under these settings."""

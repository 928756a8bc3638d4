"""An algorithm: three choices, written as data and pure functions.

    AlgorithmConfig ──build()──► Algorithm
                                   how a group is explored       exploration, read by r3l.rollout
                                   how rewards become weights    advantages, masks, normalize
                                   which token loss is applied   loss

G: the number of trajectories in a group. Importing this module does not import torch.
How to add an algorithm: r3l/algorithms/registry.py.
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
from r3l.algorithms.credit import NORMALIZE, Normalize
from r3l.algorithms.losses import TokenBatch, TokenLoss
from r3l.algorithms.recall import Recall
from r3l.errors import UserError
from r3l.records import AuxSample, Bool, Group, GroupPlan, Trajectory
from r3l.settings.section import Section

if TYPE_CHECKING:
    from torch import Tensor

ReflectOn = Literal["all", "failures"]
SftPool = Literal["separate", "shared"]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Exploration:
    """How an explore group is sampled.

    `base_slots`: attempts without help. `distilled_slots`: retries; retry i retries base i.
    `reflect_on`: which base attempts get a reflection: "all", or the "failures" (R < 1).
    `guidance`: what a retry is shown: the "reflection", a free-text "critique" or "none".
    `from_start`: retries start at step 0, not the pivot. `pivot_shift`: steps added to the pivot.
    `aux`: verified corrections become auxiliary samples; with `praise`, recognised successes too.
    `verified_requires_success`: a correction is verified only if its retry fully succeeds.
    `constrained`: reflections follow a schema. `outcome_first`: the schema begins with the outcome.
    """

    base_slots: int
    distilled_slots: int = 0
    reflect_on: ReflectOn = "all"
    guidance: Literal["reflection", "critique", "none"] = "reflection"
    from_start: bool = False
    pivot_shift: int = 0
    constrained: bool = True
    outcome_first: bool = False
    aux: bool = False
    praise: bool = True
    verified_requires_success: bool = True


Estimator = Callable[[Float64], Float64]
"""Maps rewards [G'] of the kept trajectories to their advantages [G']."""

Selection = Callable[[Float64, Sequence[Trajectory]], Bool]
"""Maps rewards [G] and trajectories of a group to bool [G], True for trajectories to train on."""

Shaping = Callable[[Float64, Sequence[Trajectory]], Float64]
"""Maps rewards [G] and trajectories of a group to the rewards [G] that the estimator gets."""


MixRecalled = Callable[[Float64, Bool], tuple[Float64, Bool]]
"""Maps a group's rewards [G] and the mask of its recalled attempts, bool [G], to (advantages [G],
keep [G])."""


@dataclass(frozen=True)
class ReplayContext:
    """Describes the batch of a replayed group. `version`: number of optimizer steps so far.
    `baseline`: median of the groups' mean rewards. Only new groups count, if there are any."""

    version: int
    baseline: float


ReplayRule = Callable[[Float64, Float64, ReplayContext], tuple[Float64, Bool]]
"""Maps rewards [G] and advantages [G] of a replayed group to (advantages [G], keep [G])."""

TokenAdvantages = Callable[[Float64, Sequence[Trajectory]], list[Float64]]
"""Maps advantages [G] and trajectories of a group to the token advantages [L] of each trajectory.
r3l.algorithms.credit.by_step spreads step values over the steps' tokens."""

ExtraSamples = Callable[[Group], Sequence[AuxSample]]
"""Maps a whole group to supervised samples, which are trained like its stored auxiliary samples."""


def keep_all(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    """Selection: keeps all trajectories."""
    return np.ones(len(rewards), dtype=np.bool_)


def unshaped(rewards: Float64, trajectories: Sequence[Trajectory]) -> Float64:
    """Returns the rewards unchanged."""
    return rewards


@dataclass(frozen=True)
class Algorithm:
    """One algorithm. Every field is a value or a pure function.

    Rewards of a group become advantages in this order:
      1. `selection` drops trajectories,
      2. `shaping` changes rewards,
      3. `estimator` turns rewards into advantages,
      4. `replay_rule` changes the advantages of a replayed group,
      5. `token_advantages` gives each token its own advantage.
    With recalled attempts, step 1 is skipped, and `mix_recalled` (if not None) replaces step 3.
    `mask_prefix`: tokens before the pivot are not trained.
    `normalize`: how the loss is averaged (r3l.algorithms.credit.token_weights).
    `kl_coef`: weight of the KL to the reference model, 0 if unused; `kl`: estimates this KL.
    `sft_weight`: λ, weight of the loss on auxiliary samples, 0 if there are none.
    `sft_share`: limit of auxiliary tokens, as a share of the attempts' tokens; None: no limit.
    `extra`: makes further auxiliary samples of a group.
    `sft_pool`: auxiliary samples have a mean of their own ("separate") or join the policy's mean.
    """

    name: str
    exploration: Exploration
    estimator: Estimator
    token_loss: TokenLoss
    normalize: Normalize = "trajectory"
    selection: Selection = keep_all
    shaping: Shaping = unshaped
    mix_recalled: MixRecalled | None = None
    replay_rule: ReplayRule | None = None
    token_advantages: TokenAdvantages | None = None
    mask_prefix: bool = False
    kl_coef: float = 0.0
    kl: Callable[[TokenBatch], Tensor] = losses.k3_kl
    sft_weight: float = 0.0
    sft_share: float | None = None
    extra: ExtraSamples | None = None
    sft_pool: SftPool = "separate"

    @property
    def needs_reference(self) -> bool:
        """Whether the learner must load a reference model."""
        return self.kl_coef > 0

    def plan(self) -> GroupPlan:
        """Returns the slot counts of one group."""
        return GroupPlan(self.exploration.base_slots, self.exploration.distilled_slots)

    def advantages(
        self, rewards: npt.ArrayLike, trajectories: Sequence[Trajectory], *, recalled: int = 0
    ) -> tuple[Float64, Bool]:
        """Returns (advantages [G], keep [G]) of a whole group. The last `recalled`
        attempts come from other groups.

        A dropped trajectory (keep False) has advantage 0, is not trained on and does not count in
        any mean. A kept trajectory counts even if its advantage is 0. Raises ValueError if a reward
        is out of range, or if rewards and trajectories differ in number.
        """
        values = checked_rewards(rewards)
        if len(values) != len(trajectories):
            raise ValueError(f"{len(values)} rewards for {len(trajectories)} trajectories")
        keep = self.selection(values, trajectories)
        shaped = self.shaping(values, trajectories)
        if recalled and self.mix_recalled is not None:
            return self.mix_recalled(shaped, np.arange(len(values)) >= len(values) - recalled)
        if recalled:
            keep = keep_all(values, trajectories)
        advantages = np.zeros_like(values)
        if keep.any():
            advantages[keep] = self._estimated(shaped[keep])
        return advantages, keep

    def _estimated(self, rewards: Float64) -> Float64:
        found = self.estimator(rewards)
        if np.shape(found) != rewards.shape or not np.isfinite(found).all():
            raise UserError(
                "the algorithm's estimator must return a finite number for each reward, but it "
                f"returned {found} for {rewards}"
            )
        return found

    def masks(self, trajectories: Sequence[Trajectory], *, recalled: int = 0) -> list[Bool]:
        """Returns each trajectory's mask of trained tokens, bool [L]. The trajectories must be a
        whole group. `recalled`: as for `advantages`."""
        own = len(trajectories) - recalled
        masks = credit.group_masks(trajectories[:own], self.mask_prefix)
        for trajectory in trajectories[own:]:
            masks += credit.group_masks([trajectory], self.mask_prefix)
        return masks

    def loss(self, batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
        """Returns (scalar loss of the kept trajectories, measurements). A batch's loss and
        measurements are the sums over its micro-batches. The measurements are:

            loss_policy                the loss without the KL term
            kl_reference               the KL in nats without `kl_coef`, if `needs_reference`
            clip_fraction              share of tokens without a gradient, if the loss clips
            ratio_correction_weight    mean weight w_t, under ratio correction
            ratio_correction_dropped   share of tokens with w_t = 0, under ratio correction

        The caller adds the loss on auxiliary samples. Raises ValueError if the reference is
        missing.
        """
        batch = batch.masked().with_unit_ratio_for_distilled()
        terms_BT, by_token = self.token_loss(batch)
        total = batch.total(terms_BT)
        measured = {"loss_policy": float(total.detach())}
        measured |= {name: float(batch.total(values.detach())) for name, values in by_token.items()}
        if self.needs_reference:
            kl = batch.total(self.kl(batch))
            total = total + self.kl_coef * kl
            measured["kl_reference"] = float(kl.detach())
        return total, measured


class AlgorithmConfig(Section):
    """The common settings of all algorithms. A subclass adds its own settings, with the published
    values as defaults, and builds the Algorithm."""

    name: str
    group_size: int = Field(
        8,
        ge=1,
        le=1024,
        description="N: base attempts of a group; r3l: N/2 and up to N/2 retries; reflect_grpo: N "
        "and up to N/2 retries; critique_grpo: N and up to N retries",
    )
    normalize: Normalize = Field("trajectory", description=NORMALIZE)

    @property
    def needs_contrast(self) -> bool:
        """Whether a group with equal rewards is replaced by another group."""
        return False

    @property
    def gates_retries(self) -> bool:
        """Whether the guidance gain (r3l.algorithms.guidance_gain) decides if a group gets
        retries."""
        return False

    @property
    def recall(self) -> Recall | None:
        """Returns the rule that recalls stored attempts for a drawn group, or None."""
        return None

    @abstractmethod
    def build(self) -> Algorithm:
        """Builds the algorithm with these settings."""

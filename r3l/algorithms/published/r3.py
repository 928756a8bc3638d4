"""R³ (arXiv 2601.19620): GRPO that learns from stored attempts, in three parts (docs/replay/r3.md).

    cross-context replay           a group of only failures or only successes recalls the opposite
    in-context self-reflection     groups at hard tasks begin with a stored failure
    structural-entropy ranking     truncated attempts of groups without success get graded rewards

The rules distinguish correct attempts (R ≥ 1) from incorrect ones, by the rewards of the
environment. Over a group's own and recalled attempts, eq. 3 is Â = (R − mean) / (α·std + λ). α is a
setting, λ is EPS.
"""

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from r3l.algorithms import advantages
from r3l.algorithms.advantages import Float64
from r3l.algorithms.batch import Batch
from r3l.algorithms.facts import GroupFacts, History, LeaseFacts, RandomSource, StoredAttempt
from r3l.algorithms.queries import Query
from r3l.algorithms.rows import Advantages, Row
from r3l.algorithms.shared import entropy_ranking, recall, self_reflection
from r3l.algorithms.shared.entropy_ranking import Entropies
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm, kl_weight
from r3l.records import SUCCESS, Group, GroupPlan, Trajectory
from r3l.rollout.exploration import Exploration

EPS = 1e-6
"""λ of eq. 3."""


class R3(RatioAlgorithm):
    """R³. The paper gives no values for α, k, τ, p and R_max; the defaults are ours."""

    name: Literal["r3"] = Field("r3", description="algorithm")
    kl_coef: float = kl_weight(0.01)
    recall_count: int | None = Field(
        None,
        ge=0,
        description="k, stored attempts with the opposite outcome that join a group of only "
        "failures or only successes; unset: 2, but at most a quarter of group_size; 0: no recall",
    )
    recall_age: int | None = Field(
        None, ge=0, description="largest age of a recalled attempt, versions; unset: any"
    )
    alpha: float = Field(
        2.0, gt=0, description="α, factor on the deviation of a group with recalled attempts"
    )
    scale: Literal["all", "replayed"] = Field(
        "all", description="α holds for all attempts of such a group, or for the recalled ones"
    )
    reflection: bool = Field(
        True,
        description="from the second epoch on, half of the groups of a hard task begin with a "
        "stored failure in their context",
    )
    reflect_below: float = Field(
        0.5, gt=0, le=1, description="τ, mean stored reward below which a task is hard"
    )
    ranking: bool = Field(
        True, description="rank the truncated attempts of groups without a success by entropy"
    )
    peak_share: float = Field(
        0.2, gt=0, le=1, description="p, share of the tokens whose entropies make up the peak"
    )
    ranking_max: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="R_max, reward of the truncated attempt that ranks first; below the 1 of a "
        "success",
    )
    length_bonus: bool = Field(
        False,
        description="add 1 − length / length_limit to the reward of a success; what is a success "
        "is told by the environment's reward alone, and none earns less than 1",
    )
    length_limit: int = Field(
        32768, ge=1, description="L_max, response tokens from which there is no length bonus"
    )

    @model_validator(mode="after")
    def _scale_has_recalled_attempts(self) -> Self:
        if self.scale == "replayed" and self.recall_count == 0:
            raise ValueError(
                "scale=replayed: algorithm.recall_count=0 recalls nothing that could be scaled; "
                "set scale=all"
            )
        return self

    @property
    def looks_back(self) -> str:
        reflects, recalls = self.reflection, self.recall_count != 0
        return "recalls stored attempts, or reflects on them," if reflects or recalls else ""

    @property
    def shows_context(self) -> str:
        return "reflection" if self.reflection else ""

    # ── the service ─────────────────────────────────────────────────────────────────────

    def plan(self, lease: LeaseFacts) -> GroupPlan:
        """Plans a plain group, or a reflecting one for a hard task."""
        plan = None
        if self.reflection:
            plan = self_reflection.plan_reflecting(lease, self.group_size, self.reflect_below)
        return plan or GroupPlan(self.group_size)

    def recalls(
        self, group: GroupFacts, history: History, random: RandomSource
    ) -> Sequence[StoredAttempt]:
        """Cross-context replay: if a whole group failed or succeeded, recalls stored attempts with
        the opposite outcome. Their context may differ from the group's."""
        count = self.recall_count
        if count is None:
            count = min(2, max(1, self.group_size // 4))
        if not count:
            return []
        return recall.opposing(group, history, random, count=count, max_age=self.recall_age)

    # ── the actor ───────────────────────────────────────────────────────────────────────

    async def explore(self, x: Exploration) -> None:
        if x.plan.kind == self_reflection.REFLECTING:
            await self_reflection.explore(x)
        else:
            await super().explore(x)

    # ── the learner ─────────────────────────────────────────────────────────────────────

    def queries(self, batch: Batch) -> Sequence[Query]:
        """Asks for the reference's log-probabilities, and for the entropies that rank attempts."""
        asked = list(super().queries(batch.as_read(self_reflection.is_reflecting)))
        return [*asked, *entropy_ranking.queries(batch)] if self.ranking else asked

    def rows(self, batch: Batch) -> list[Row]:
        """Makes the rows of one step. The rows of a reflecting group include the failure that was
        shown."""
        return super().rows(batch.as_read(self_reflection.is_reflecting))

    def advantages(self, batch: Batch) -> list[Advantages]:
        """Returns the advantages [G] of the attempts of each group. Recalled attempts come last.
        Truncated attempts get the rewards of their ranks, if the batch has its answers."""
        found: list[Advantages] = []
        for group in batch.groups:
            attempts = batch.attempts(group)
            if not attempts:
                found.append(np.zeros(0))
                continue
            recalled = attempts[len(group.trajectories) :]
            earned = [*self._own_rewards(batch, group), *(attempt.reward for attempt in recalled)]
            rewards = advantages.checked_rewards(earned)
            found.append(self.weigh(rewards, attempts, len(recalled)))
        return found

    def _own_rewards(self, batch: Batch, group: Group) -> Float64:
        if not self.ranking:
            return group.rewards
        return entropy_ranking.rewards(batch, group, self.ranked)

    def ranked(self, entropies: Sequence[Entropies]) -> Float64:
        """Maps the token entropies of the N truncated attempts of a failed group, each [L] in nats,
        to their rewards, float64 [N]."""
        return entropy_ranking.ranked(
            entropies, peak_share=self.peak_share, largest=self.ranking_max
        )

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Standardises the rewards; with recalled attempts, by eq. 3."""
        if self.length_bonus:
            rewards = rewards + self._bonus(rewards, attempts)
        if not recalled:
            return self.standardised(rewards)
        softened = advantages.normalized(rewards, EPS, std=self.std, factor=self.alpha)
        if self.scale == "all":
            return softened
        own = np.arange(len(rewards)) < len(rewards) - recalled
        return np.where(own, self.standardised(rewards), softened)

    def _bonus(self, rewards: Float64, attempts: Sequence[Trajectory]) -> Float64:
        """Returns max(0, 1 − l/L_max) for a success with l response tokens, else 0, [G]."""
        lengths = np.array([int(attempt.response_mask.sum()) for attempt in attempts])
        shorter = np.maximum(0.0, 1.0 - lengths / self.length_limit)
        return np.where(rewards >= SUCCESS, shorter, 0.0)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Adds how many groups reflect on a stored failure, and how many attempts are ranked."""
        ranked = [len(entropy_ranking.truncated(group)) for group in groups if self.ranking]
        return super().metrics(groups) | {
            "group/reflecting": float(sum(map(self_reflection.is_reflecting, groups))),
            "group/ranked": float(sum(count for count in ranked if count > 1)),
        }

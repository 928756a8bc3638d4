"""An algorithm is one class, and its fields are its settings. Override what you change.

    service   plan      how many slots a group has, which stored attempts its actor gets
              admits    whether a finished group may be trained on, or is replaced
              recalls   stored attempts that join a drawn group
    actor     explore   how the slots are filled, with the verbs of r3l.rollout.exploration
    learner   queries   what to ask the model before the rows are made
              rows      token sequences with advantages and weights
              loss      named parts, which the trainer adds
              metrics   what else is reported of a step's groups

The service's methods must be pure and quick, and run without torch. If a method raises there or in
the actor, the failure is counted by its cause, and the run goes on. Every method has a default: N
attempts at a task, advantages R − mean, a policy gradient.

G: the number of attempts in a group. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from r3l.algorithms import advantages, credit, losses, rows
from r3l.algorithms.advantages import Float64
from r3l.algorithms.batch import Batch
from r3l.algorithms.credit import NORMALIZE, Normalize
from r3l.algorithms.facts import GroupFacts, History, LeaseFacts, RandomSource, StoredAttempt
from r3l.algorithms.losses import Terms, TokenBatch
from r3l.algorithms.queries import Query, Weights
from r3l.algorithms.rows import POLICY, Advantages, Counted, Row
from r3l.records import Bool, Group, GroupPlan, Trajectory
from r3l.rollout.exploration import Exploration
from r3l.settings.section import Section
from r3l.settings.user_class import errors_named

if TYPE_CHECKING:
    from torch import Tensor


class Algorithm(Section):
    """The base of all algorithms: N attempts, R − mean, a policy gradient."""

    name: str = Field("", description="algorithm")
    group_size: int = Field(
        8,
        ge=1,
        le=1024,
        description="N: base attempts of a group; r3l, rltf, hill: N/2 and up to N/2 retries; "
        "reflect_grpo: N and up to N/2 retries; critique_grpo: N and up to N retries",
    )
    normalize: Normalize = Field("trajectory", description=NORMALIZE)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses a setting that hides a method."""
        hidden = [
            n for n in cls.model_fields for base in cls.__mro__[1:] if callable(vars(base).get(n))
        ]
        if hidden:
            raise TypeError(f"the setting {hidden[0]!r} has the name of a method; rename it")

    # ── the service ─────────────────────────────────────────────────────────────────────

    def plan(self, lease: LeaseFacts) -> GroupPlan:
        """Returns the plan of the next group."""
        return GroupPlan(self.group_size)

    def admits(self, group: GroupFacts) -> str:
        """Returns "" if a finished group may be trained on. Otherwise returns the cause, and
        another group replaces the group."""
        return ""

    def recalls(
        self, group: GroupFacts, history: History, random: RandomSource
    ) -> Sequence[StoredAttempt]:
        """Returns the stored attempts that join a drawn group."""
        return ()

    # ── the actor ───────────────────────────────────────────────────────────────────────

    async def explore(self, x: Exploration) -> None:
        """Fills every slot of the plan: plays all attempts at the same time."""
        await x.each(range(x.plan.slots), x.play)

    # ── the learner ─────────────────────────────────────────────────────────────────────

    @property
    def needs(self) -> tuple[Weights, ...]:
        """The weights that `queries` may name, in addition to the current ones."""
        return ()

    def queries(self, batch: Batch) -> Sequence[Query]:
        """Returns what to ask the model. `rows` finds the answers in `batch.answers`."""
        return ()

    def rows(self, batch: Batch) -> list[Row]:
        """Makes the rows of one step. Their weights already contain every mean over the batch."""
        return rows.with_gradient(rows.weigh(self.policy_rows(batch), self.normalize))

    def loss(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Returns named parts of the loss of a micro-batch, whose sum is trained. Measures
        `loss_policy`, `loss_penalized` and what the token loss measures."""
        policy = self.policy_loss(batch)
        batch.measure("loss_penalized", policy.detach())
        return {"policy": policy}

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Measures a step's groups by the algorithm's own rules. Each name begins with `group/`. By
        default, measures the share of retries that are verified corrections."""
        pairs = [pair for group in groups for pair in group.retries]
        verified = [self.verifies(base, retry) for base, retry in pairs]
        return {"group/verified_rate": sum(verified) / len(pairs)} if pairs else {}

    def verifies(self, base: Trajectory, retry: Trajectory) -> bool:
        """Whether a retry is a verified correction of its attempt."""
        return credit.verified(base, retry)

    def count_left_out(self, batch: Batch) -> int | None:
        """Returns how many supervised samples a limit leaves out of a step; None if the algorithm
        has no supervised samples."""
        return None

    @property
    def looks_back(self) -> str:
        """What the algorithm does with stored attempts at the same task, as a verb; "" if it needs
        none. If it is not "", a run that plays no task twice gets a warning."""
        return ""

    @property
    def shows_context(self) -> str:
        """The setting that makes attempts begin with a context; "" if there is none. An agent's
        attempts cannot read a context, so a run with agents is refused."""
        return ""

    @property
    def repeats_prefixes(self) -> bool:
        """Whether most rows repeat a prefix of another row. A run with padded rows, which would
        compute each prefix again, is then refused."""
        return False

    # ── what the defaults are made of ───────────────────────────────────────────────────

    def policy_rows(self, batch: Batch) -> list[Counted]:
        """Makes the rows of a batch's attempts, before they are weighed."""
        found = self.advantages(batch)
        by_token = self.token_advantages(batch, found)
        return rows.policy(batch, found, self.credit_masks(batch), self.normalize, by_token)

    def token_advantages(
        self, batch: Batch, found: Sequence[Advantages]
    ) -> Sequence[Sequence[Float64]] | None:
        """Returns advantages of single tokens, float64 [L] for each attempt of each group, which
        replace those of the attempts (`found`). None: every token has its attempt's advantage. The
        tokens are those of the main conversation; r3l.algorithms.credit.by_step turns values of
        steps into values of tokens."""
        return None

    def advantages(self, batch: Batch) -> list[Advantages]:
        """Returns the advantages [G] of the attempts of each group. Recalled attempts come last."""
        found: list[Advantages] = []
        for group in batch.groups:
            attempts = batch.attempts(group)
            if not attempts:
                found.append(np.zeros(0))
                continue
            rewards = advantages.checked_rewards([attempt.reward for attempt in attempts])
            found.append(self.weigh(rewards, attempts, batch.recalls(group)))
        return found

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Maps the rewards [G] of one group to advantages [G]. The last `recalled` attempts come
        from other groups. An attempt whose advantage is masked is left out of the step and of every
        mean; an attempt with advantage 0 still counts."""
        return advantages.centered(rewards)

    def credit_masks(self, batch: Batch) -> list[list[Bool]]:
        """Returns the trained tokens of each attempt in each group, bool [L]."""
        found = []
        for group in batch.groups:
            attempts = batch.attempts(group)
            own = len(attempts) - batch.recalls(group)
            masks = self.masks(attempts[:own])
            for attempt in attempts[own:]:  # whose relatives are in another group
                masks += self.masks([attempt])
            found.append(masks)
        return found

    def masks(self, attempts: Sequence[Trajectory]) -> list[Bool]:
        """Returns the trained tokens of the attempts of one group, bool [L]."""
        return credit.group_masks(attempts, mask_prefix=False)

    def token_loss(self, batch: TokenBatch) -> Terms:
        """Maps a micro-batch to the terms [B, T] of the policy's loss, and to measurements."""
        return losses.policy_gradient(batch)

    def policy_loss(self, batch: TokenBatch) -> Tensor:
        """Returns the policy's part of the loss, a scalar. Measures it, and the measurements of the
        token loss."""
        own = batch.of(POLICY).masked().with_unit_ratios()
        terms_BT, by_token = self.token_loss(own)
        total = own.total(terms_BT)
        batch.measure("loss_policy", total.detach())
        for name, values_BT in by_token.items():
            batch.measure(name, own.total(values_BT.detach()))
        return total

    @property
    def replaces_groups(self) -> bool:
        """Whether groups with equal rewards are replaced."""
        with errors_named(f"algorithm {self.name}: admits"):
            return bool(self.admits(GroupFacts("", (0.0, 0.0), (-1, -1))))

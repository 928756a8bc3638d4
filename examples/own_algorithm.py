"""Copy this file for an algorithm of your own. As it stands it changes nothing: each method does
what that of its base class does. Keep the methods that you change, and delete the others.

r3l-launch algorithm=examples/own_algorithm.py:OwnAlgorithm

A base class that is nearer to your idea leaves less to write: r3l.GRPO, r3l.R3L, and the others of
docs/algorithm.md.
"""

from pydantic import Field

from r3l import Algorithm, GroupPlan
from r3l.algorithms import advantages, credit, losses, rows


class OwnAlgorithm(Algorithm):
    """N attempts, R − mean, a policy gradient."""

    group_size: int = Field(8, ge=2, le=1024, description="N, attempts of a group")  # a setting

    # ── in the buffer service: within 2 s, without torch ────────────────────────────────

    def plan(self, lease):
        """How many slots the next group has, and which stored attempts its actor gets."""
        return GroupPlan(self.group_size)

    def admits(self, group):
        """ "" if a finished group may be trained on, else the cause for which it is replaced."""
        return ""

    def recalls(self, group, history, random):
        """Stored attempts that join a drawn group."""
        return ()

    # ── in the actor ────────────────────────────────────────────────────────────────────

    async def explore(self, x):
        """Fills every slot with play, ask, retry, skip and fail."""
        await x.each(range(x.plan.slots), x.play)

    # ── in the learner ──────────────────────────────────────────────────────────────────

    def queries(self, batch):
        """What to ask the model before the rows are made."""
        return ()

    def weigh(self, rewards, attempts, recalled=0):
        """Rewards [G] to advantages [G]. `attempts` are the group's, in the order of their slots;
        `attempt.of` is the slot that it retried, or -1. The last `recalled` are of other groups."""
        return advantages.centered(rewards)

    def masks(self, attempts):
        """The trained tokens of each attempt, bool [L]. With `mask_prefix=True` a retry and its
        attempt are trained from the pivot on, as in R³L."""
        return credit.group_masks(attempts, mask_prefix=False)

    def rows(self, batch):
        """Token sequences with an advantage and a weight for every token."""
        return rows.with_gradient(rows.weigh(self.policy_rows(batch), self.normalize))

    def token_loss(self, batch):
        """The term [B, T] of every token in the policy's loss, and what to measure of it."""
        return losses.policy_gradient(batch)

    def loss(self, batch):
        """Named parts of the loss, which the trainer adds."""
        return super().loss(batch)

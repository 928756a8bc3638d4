"""R³L: reflect, retry from the pivot, train with pivotal credit and positive amplification
(arXiv 2601.03715).

    explore    N/2 attempts; each gets a reflection, and perhaps a retry from its pivot
    rows       attempts, amplified (Eq. 11) and masked before the pivot; verified corrections as
               supervised samples
    loss       −Â · log π, and λ times the supervised loss

Six parts are methods, for a subclass to replace: the question, what triggers a retry, its pivot,
its guidance, the credit (`masks`) and the amplification (`amplified`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from r3l.algorithms import advantages, credit, guidance_gain, losses, rows
from r3l.algorithms.advantages import STD, Float64, Std
from r3l.algorithms.batch import Batch
from r3l.algorithms.facts import GroupFacts, History, LeaseFacts, RandomSource, StoredAttempt
from r3l.algorithms.losses import Terms, TokenBatch
from r3l.algorithms.rows import IMITATION, Advantages, Counted, Row
from r3l.algorithms.shared import recall
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry
from r3l.records import (
    SUCCESS,
    Bool,
    Group,
    GroupPlan,
    Int32,
    ReflectionRecord,
    Trajectory,
)
from r3l.rollout import reflection
from r3l.rollout.exploration import Exploration
from r3l.rollout.prompts import Prompts

if TYPE_CHECKING:
    from torch import Tensor

ReflectOn = Literal["all", "failures", "unsolved"]
SftPool = Literal["separate", "shared"]
PLAIN = "plain"
"""The kind of groups that are explored without retries."""


class R3L(ReflectAndRetry):
    """R³L. Each ablation of the paper can be set here.

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
        "all",
        description="base attempts that are reflected on: all; failures (R < 1); unsolved: those "
        "of a group in which none succeeded (in other groups further attempts take the places of "
        "retries)",
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
        None,
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

    @model_validator(mode="after")
    def _gain_can_be_measured(self) -> Self:
        if self.gate == "none":
            return self
        if not self.reflect:
            raise ValueError("gate=measured: needs retries, but algorithm.reflect=false makes none")
        if self.reflect_on == "unsolved":
            raise ValueError(
                "gate=measured: no gain can be measured with algorithm.reflect_on=unsolved, which "
                "retries only where all attempts failed; leave one of them out"
            )
        if self.group_size < 4:
            raise ValueError(
                f"gate=measured: one base attempt is too few to measure a gain; set "
                f"algorithm.group_size to 4 or more, not {self.group_size}"
            )
        return self

    @property
    def base_attempts(self) -> int:
        return self.group_size // 2 if self.reflect else self.group_size

    @property
    def looks_back(self) -> str:
        return "recalls stored successes" if self.recall_count else ""

    # ── exploration ─────────────────────────────────────────────────────────────────────

    def plan(self, lease: LeaseFacts) -> GroupPlan:
        """Plans N slots. With the gate, a group gets retries with the probability that
        r3l.algorithms.guidance_gain computes."""
        if self.reflect and self.gate == "measured":
            probability = guidance_gain.retry_probability(lease.gains)
            if lease.random().random() >= probability:
                return GroupPlan(self.group_size, PLAIN)
        if not self.reflect:
            return GroupPlan(self.group_size, PLAIN)
        unsolved = self.reflect_on == guidance_gain.UNSOLVED
        return GroupPlan(self.group_size, guidance_gain.UNSOLVED if unsolved else "")

    def recalls(
        self, group: GroupFacts, history: History, random: RandomSource
    ) -> Sequence[StoredAttempt]:
        """Recalls stored successes for a group without success."""
        if not self.recall_count:
            return []
        count, age = self.recall_count, self.recall_age
        return recall.opposing(
            group, history, random, count=count, successes_only=True, max_age=age
        )

    async def explore(self, x: Exploration) -> None:
        if not self.reflect or x.plan.kind == PLAIN:
            await x.each(range(x.plan.slots), x.play)
        elif self.reflect_on == "unsolved":
            await self.explore_unsolved(x)
        else:
            await super().explore(x)

    async def explore_unsolved(self, x: Exploration) -> None:
        """Retries the attempts if none of them succeeded. Otherwise plays further attempts."""
        retries = self.retries(x.plan.slots)
        again = [slot for slots in retries.values() for slot in slots]
        await x.each(retries, lambda slot: x.play(slot, retried=len(retries[slot]) > 0))
        bases = {slot: x.attempt(slot) for slot in retries}  # not what is stored of later slots
        if any(base is not None and base.reward >= SUCCESS for base in bases.values()):
            await x.each(again, x.play)
        else:
            await x.each(
                retries, lambda slot: self.reflect_and_retry(x, slot, bases[slot], retries[slot])
            )

    def reflects_on(self, base: Trajectory) -> bool:
        return self.reflect_on == "all" or base.reward < SUCCESS

    def answer_schema(self, base: Trajectory) -> dict[str, Any] | None:
        if not self.constrained_reflection:
            return None
        return reflection.json_schema(base.num_steps, outcome_first=self.outcome_first)

    def pivot_of(self, thought: ReflectionRecord, base: Trajectory) -> int:
        """Returns the step that the reflection names, plus a shift, kept within the attempt."""
        if self.from_start:
            return 0
        return min(max(thought.pivot + self.pivot_shift, 0), base.num_steps - 1)

    def guidance_of(self, thought: ReflectionRecord, base: Trajectory, prompts: Prompts) -> str:
        return super().guidance_of(thought, base, prompts) if self.guidance else ""

    # ── learning ────────────────────────────────────────────────────────────────────────

    def weigh(
        self, rewards: Float64, attempts: Sequence[Trajectory], recalled: int = 0
    ) -> Advantages:
        """Amplifies the rewards. Divides the advantages of recalled attempts by α_off."""
        values = self.amplified(rewards)
        if recalled:
            values = values / np.where(
                np.arange(len(values)) < len(values) - recalled, 1, self.recall_alpha
            )
        return values

    def amplified(self, rewards: Float64) -> Float64:
        """Returns the advantages of Eq. 11, or R − mean without amplification, [G]."""
        if not self.amplify:
            return self.standardised(rewards)
        return advantages.amplified(
            rewards,
            self.alpha,
            max_rule=self.max_rule,
            max_advantage=self.max_advantage,
            std=self.std,
        )

    def masks(self, attempts: Sequence[Trajectory]) -> list[Bool]:
        """Pivotal credit: a retry and its attempt are trained from the pivot on."""
        return credit.group_masks(attempts, mask_prefix=self.credit)

    def rows(self, batch: Batch) -> list[Row]:
        """Makes the rows of the attempts and, with λ > 0, of the supervised samples."""
        policy = self.policy_rows(batch)
        aux = [sample for together in self.draw_corrections(batch, policy) for sample in together]
        if self.sft_pool == "shared":
            weighed = rows.weigh([*policy, *aux], self.normalize)
        else:
            weighed = [*rows.weigh(policy, self.normalize), *rows.weigh(aux, "token")]
        return rows.with_gradient(weighed, penalized=self.kl_coef > 0)

    def draw_corrections(self, batch: Batch, policy: Sequence[Counted]) -> list[list[Counted]]:
        """Returns the `corrections` that a step trains on. `policy`: the rows of its attempts."""
        found = self.corrections(batch)
        if self.sft_share is None:
            return found
        return at_most(found, self.sft_share * rows.count_tokens(policy), batch.version or 0)

    def count_left_out(self, batch: Batch) -> int:
        """Returns how many supervised samples `sft_share` leaves out of a step."""
        if self.sft_share is None:
            return 0
        kept = self.draw_corrections(batch, self.policy_rows(batch))
        return sum(map(len, self.corrections(batch))) - sum(map(len, kept))

    def corrections(self, batch: Batch) -> list[list[Counted]]:
        """Returns the supervised samples of a batch, as lists of samples that are trained together.
        There are none without reflections or with λ = 0."""
        if not (self.reflect and self.sft_weight):
            return []
        return [
            [rows.imitation(group, ids, mask, batch.weight(number)) for ids, mask in together]
            for number, group in enumerate(batch.groups)
            for together in self.samples(group)
        ]

    def samples(self, group: Group) -> list[list[tuple[Int32, Bool]]]:
        """Returns the supervised samples of a group, as token ids and masks. A reflection with
        verified corrections is a sample, and so are the conversations of these corrections. With
        `praise`, a reflection that recognises a success is a sample too."""
        named = {thought.name: thought for thought in group.reflections}
        found: dict[str, list[tuple[Int32, Bool]]] = {}
        for base, retry in group.retries:
            if retry.reflection and self.verifies(base, retry):
                thought = named.get(retry.reflection)
                own = [] if thought is None else [(thought.token_ids, thought.response_mask)]
                found.setdefault(retry.reflection, own).append(retry.as_shown())
        solved = {t.slot for t in group.trajectories if t.reward >= SUCCESS}
        praised = [
            [(thought.token_ids, thought.response_mask)]
            for thought in group.reflections
            if self.praise and thought.outcome == "success" and thought.of in solved
        ]
        return [*found.values(), *praised]

    def verifies(self, base: Trajectory, retry: Trajectory) -> bool:
        """Whether a retry is a verified correction."""
        return credit.verified(base, retry, requires_success=self.verified_requires_success)

    def token_loss(self, batch: TokenBatch) -> Terms:
        loss = self.clipped_ratio if self.clipped else losses.policy_gradient
        return self.corrected(loss)(batch)

    def kl(self, batch: TokenBatch) -> Tensor:
        return losses.k2_kl(batch)

    def loss(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Adds λ times the supervised loss. Also measures `loss_sft`."""
        supervised = losses.imitation_loss(batch)
        return super().loss(batch) | {"sft": self.sft_weight * supervised[IMITATION]}


def at_most(corrections: Sequence[list[Counted]], tokens: float, step: int) -> list[list[Counted]]:
    """Draws whole corrections that together have at most `tokens` tokens. Each has the same
    probability, whatever its length.

    If the n longest corrections fit, any n of them do. Takes the largest such n, and keeps the
    first n of a pseudo-random order. The order depends only on `step` and the samples, so it is the
    same in a replay."""
    longest = sorted((rows.count_tokens(each) for each in corrections), reverse=True)
    fitting = sum(total <= tokens for total in accumulate(longest))

    def place(each: list[Counted]) -> bytes:
        text = b"".join(row.token_ids.tobytes() for sample in each for row in sample.rows)
        key = step.to_bytes(8, "little", signed=True)
        return hashlib.blake2b(text, digest_size=16, key=key).digest()

    return sorted(corrections, key=place)[:fitting]

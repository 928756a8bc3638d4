"""HiLL, learning to hint (arXiv 2604.00698), with the policy as its own hinter: a reflection earns
what its retry earns, or less if the retry relied on it.

    Â        standardised over attempts and retries
    Δ, w     reliance of the retry, w = exp(min(Δ, 0)/0.3)        r3l.algorithms.shared.reliance
    loss     GRPO's, and λ times the same loss on the tokens of the reflection, with w·Â(retry)

A reflection weighs as much as an attempt: its ratio to the policy that wrote it is clipped, and it
counts as one of the step's attempts in the mean, however few reflections there are. Its term
replaces R³L's auxiliary loss. Rewarding a reflection with the result of its retry is the idea of
Reflect, Retry, Reward (arXiv 2505.24726).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import credit, rows
from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.queries import Query, answer_of
from r3l.algorithms.rows import Advantages, Counted, Row
from r3l.algorithms.shared import reliance
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry
from r3l.records import SUCCESS, Bool, Group, ReflectionRecord, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

REFLECTION = "reflection"
"""The loss of rows that train reflections."""


class HiLL(ReflectAndRetry):
    """HiLL. A failure among N/2 attempts gets a reflection, and perhaps a retry from its pivot."""

    name: Literal["hill"] = Field("hill", description="algorithm")
    reflection_weight: float = Field(
        1.0, ge=0, description="λ, weight of the loss on reflections; 0: they are not trained"
    )
    reliance_scale: float = Field(
        reliance.SCALE, gt=0, description="nats of reliance at which w has fallen to 1/e"
    )
    reliance_least: float | None = Field(
        None,
        le=0,
        description="nats; a retry whose reliance is lower is not trained on; unset: all are",
    )

    @property
    def base_attempts(self) -> int:
        return (self.group_size + 1) // 2

    def reflects_on(self, base: Trajectory) -> bool:
        return base.reward < SUCCESS

    def queries(self, batch: Batch) -> Sequence[Query]:
        """Asks for the log-probabilities of retries without their guidance."""
        asked = [*super().queries(batch)]
        if self.reflection_weight or self.reliance_least is not None:
            asked += reliance.queries(batch)
        return asked

    def advantages(self, batch: Batch) -> list[Advantages]:
        """Standardises rewards. Leaves out the retries that rely too much on guidance."""
        found = super().advantages(batch)
        if self.reliance_least is None:
            return found
        return [
            self._gated(batch, group, values)
            for group, values in zip(batch.groups, found, strict=True)
        ]

    def _gated(self, batch: Batch, group: Group, values: Advantages) -> Advantages:
        keep = rows.kept(values)
        slots = [attempt.slot for attempt in batch.attempts(group)]
        for _, retry in group.retries:
            delta = reliance.reliance(batch, group, retry)
            if delta is not None and delta < (self.reliance_least or 0.0):
                keep[slots.index(retry.slot)] = False
        return rows.keep_only(rows.plain(values), keep)

    def masks(self, attempts: Sequence[Trajectory]) -> list[Bool]:
        """Pivotal credit: a retry and its attempt are trained from the pivot on."""
        return credit.group_masks(attempts)

    def rows(self, batch: Batch) -> list[Row]:
        """Adds a row for each reflection that led to a retry. Each such row weighs as much as an
        attempt."""
        if not self.reflection_weight:
            return super().rows(batch)
        own = rows.weigh(self.reflection_rows(batch), self.normalize, self.policy_rows(batch))
        return super().rows(batch) + [row for row in own if row.learns]

    def reflection_rows(self, batch: Batch) -> list[Counted]:
        """Makes the rows of the reflections, not yet weighed. The advantage of a reflection is the
        mean of w·Â over its retries."""
        for query in reliance.queries(batch):
            answer_of(batch, query.key)  # raises if it was not asked
        found = []
        for number, (group, values) in enumerate(
            zip(batch.groups, super().advantages(batch), strict=True)
        ):
            earned = self._earned(batch, group, values)
            for thought in group.reflections:
                if thought.name in earned:
                    row = _row(thought, fmean(earned[thought.name]), batch.weight(number))
                    found.append(Counted([row], thought.tokens, group.group_id))
        return found

    def _earned(self, batch: Batch, group: Group, values: Advantages) -> dict[str, list[float]]:
        """Returns w·Â of the retries of each reflection, by its name."""
        earned = defaultdict[str, list[float]](list)
        by_slot = dict(
            zip((a.slot for a in batch.attempts(group)), rows.plain(values), strict=True)
        )
        for _, retry in group.retries:
            delta = reliance.reliance(batch, group, retry)
            weight = reliance.weight(delta, self.reliance_scale)
            if retry.reflection:
                earned[retry.reflection].append(weight * float(by_slot[retry.slot]))
        return earned

    def loss(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Adds λ times the loss on reflections. Also measures `loss_reflection`."""
        own = batch.of(REFLECTION).masked().with_unit_ratios()
        total = own.total(self.token_loss(own)[0])
        batch.measure("loss_reflection", total.detach())
        return super().loss(batch) | {REFLECTION: self.reflection_weight * total}


def _row(thought: ReflectionRecord, advantage: float, weight: float) -> Row:
    count = len(thought.token_ids)
    return Row(
        thought.token_ids,
        thought.response_mask,
        thought.logprobs,
        np.full(count, advantage, np.float32),
        np.full(count, weight),
        loss=REFLECTION,
        measured=bool(thought.logprobs[thought.response_mask].any()),  # imported: all are 0
        temperature=thought.temperature or 1.0,
    )

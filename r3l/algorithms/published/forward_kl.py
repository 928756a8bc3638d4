"""Self-distillation by a forward cross-entropy on visited prefixes (after arXiv 2606.05152): at
every token of its own attempt, the policy imitates the policy that has read the advice.

    term = −Σ_t Σ_v π_g(v | x, advice, y_<t) log π(v | x, y_<t)        v among the k likeliest

A row trains one token at each position, so the inner sum is sampled: at each position, one v is
drawn from π_g among its k likeliest tokens, and weighed with the probability m_t that π_g gives to
all k. In expectation this is the gradient of the sum. If v is the attempt's own token, a row of the
attempt trains it. Each other v has a row of its own: the prefix and v. Rows share the tokens of a
prefix, which are computed once where rows are packed as trees. An attempt has at most
`other_tokens` such rows. Of n > `other_tokens` positions, only that many are drawn, and each weighs
n/`other_tokens` times as much.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import Field

from r3l.algorithms import credit, losses, rows
from r3l.algorithms.advantages import Float64
from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.queries import Query, TopK, answer_of, key_of
from r3l.algorithms.rows import Counted, Row
from r3l.algorithms.shared.re_reading import TEACHER, Reading, ReReading
from r3l.records import Int32

if TYPE_CHECKING:
    from torch import Tensor

DISTILLED = "distilled"
"""The loss of rows that imitate the teacher."""


class ForwardKL(ReReading):
    """Forward self-distillation, in addition to GRPO's loss."""

    name: Literal["forward_kl"] = Field("forward_kl", description="algorithm")
    distilled_weight: float = Field(1.0, ge=0, description="λ, weight of the cross-entropy")
    likeliest: int = Field(
        100, ge=1, le=1000, description="k, how many of the teacher's likeliest tokens count"
    )
    other_tokens: int = Field(
        64,
        ge=1,
        le=4096,
        description="positions of an attempt at which another token than its own is trained; of "
        "more positions, this many are drawn",
    )

    @property
    def repeats_prefixes(self) -> bool:
        return self.distilled_weight > 0

    def asked(self, batch: Batch) -> Iterator[Query]:
        """Yields a query for the teacher's likeliest tokens in each attempt that is read again."""
        for each in self.readings(batch) if self.distilled_weight else ():
            yield Query(
                key_of(TEACHER, each.source),
                each.token_ids,
                each.mask,
                "topk",
                self.teacher,
                each.source.attempt.temperature or 1.0,
                self.likeliest,
            )

    def rows(self, batch: Batch) -> list[Row]:
        """Adds the rows that imitate the teacher. The scored tokens of an attempt weigh as much as
        an attempt does in the policy's loss, so a few attempts with advice weigh less than many.
        """
        if not self.distilled_weight:
            return super().rows(batch)
        own = rows.weigh(self.distilled_rows(batch), self.normalize, self.policy_rows(batch))
        return super().rows(batch) + own

    def distilled_rows(self, batch: Batch) -> list[Counted]:
        """Makes the rows that imitate the teacher, before they are weighed."""
        weights = {group.group_id: batch.weight(n) for n, group in enumerate(batch.groups)}
        found = []
        for each in self.readings(batch):
            top, group = answer_of(batch, key_of(TEACHER, each.source)), each.source.into
            drawn = drawn_tokens(each, top, batch.version or 0, self.other_tokens)
            own = [row.scaled(weights[group]) for row in imitated(each, drawn)]
            [length] = credit.lengths(self.normalize, [each.source.attempt], [each.own_mask])
            found.append(Counted(own, length, group))
        return found

    def loss(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Adds λ times the cross-entropy. Also measures `loss_distilled`."""
        own = batch.of(DISTILLED).masked()
        total = own.total(losses.sft(own)[0])
        batch.measure("loss_distilled", total.detach())
        return super().loss(batch) | {DISTILLED: self.distilled_weight * total}


class Drawn(NamedTuple):
    """What an attempt is trained on, at each of its n scored positions. `token_ids` int32 [n].
    `weights` float64 [n]: weight of the term −log π(token); 0 for a position that is left out."""

    token_ids: Int32
    weights: Float64


def drawn_tokens(reading: Reading, top: TopK, step: int, others: int) -> Drawn:
    """Draws a token for each scored position from the teacher's likeliest ones. If the drawn token
    differs from the attempt's own at more than `others` positions, keeps only `others` of these,
    chosen at random. The draw follows from the attempt and the step, so it is the same on all ranks
    and in a replay."""
    shares = np.exp(top.logprobs[reading.mask].astype(np.float64)).cumsum(axis=1)
    seed = zlib.crc32(reading.token_ids.tobytes(), step & 0xFFFFFFFF)
    random = np.random.default_rng(seed)
    points = random.random((len(shares), 1)) * shares[:, -1:]
    places = (shares <= points).sum(axis=1).clip(max=shares.shape[1] - 1)
    chosen: Int32 = top.token_ids[reading.mask][np.arange(len(shares)), places]
    weights = shares[:, -1].copy()
    other = np.flatnonzero(chosen != reading.token_ids[reading.mask])
    if len(other) > others:
        kept = random.choice(other, others, replace=False)
        scaled = weights[kept] * (len(other) / others)
        weights[other] = 0.0
        weights[kept] = scaled
    return Drawn(chosen, weights)


def imitated(reading: Reading, drawn: Drawn) -> Iterator[Row]:
    """Yields supervised rows of an attempt. The first row has the drawn tokens that equal the
    attempt's own. Each other drawn token has a row of its own, unless it is left out."""
    attempt = reading.source.attempt
    heat = attempt.temperature or 1.0
    places = np.flatnonzero(reading.own_mask)
    same = attempt.token_ids[places] == drawn.token_ids
    weights = np.zeros(len(attempt.token_ids))
    weights[places[same]] = drawn.weights[same]
    if same.any():
        yield _row(attempt.token_ids, weights, heat)
    for n in np.flatnonzero(~same & (drawn.weights > 0)).tolist():
        place = int(places[n])
        ids = np.append(attempt.token_ids[:place], drawn.token_ids[n]).astype(np.int32)
        yield _row(ids, np.where(np.arange(place + 1) == place, drawn.weights[n], 0.0), heat)


def _row(token_ids: Int32, weights: Float64, temperature: float) -> Row:
    """Makes a row that trains the tokens with a weight, float64 [L]."""
    row = rows.supervised(token_ids, weights > 0, loss=DISTILLED)
    return replace(row, weights=weights[: len(row.token_ids)], temperature=temperature)

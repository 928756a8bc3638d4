"""Training rows: token sequences with an advantage and a weight for every token.

    attempts of a batch ─► policy ─┐
    supervised samples  ─► imitation ─► counted rows ─► weigh ─► rows of the step

Shapes: L tokens of a row. The loss of a step is a sum over its rows,

    Σ_g w_g [ Σ_{i in g, kept} c_i Σ_t term_it  +  λ Σ_{j in g, supervised} c_j Σ_t −log π(y_jt) ]

with term_it from r3l.algorithms.losses. r3l.algorithms.credit.token_weights computes c over all
rows that are averaged together, before any is left out. An algorithm makes the supervised samples
and limits their share, as r3l.algorithms.r3l does. c does not depend on w_g. So with
w_g = (n P_g)^-1 the expectation over draws is the mean over all n candidates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from r3l.algorithms import credit
from r3l.algorithms.advantages import Float64
from r3l.algorithms.batch import Batch, Source
from r3l.algorithms.credit import Normalize
from r3l.algorithms.queries import Query, key_of
from r3l.errors import UserError
from r3l.records import Bool, Float32, Group, Int32, Trajectory

Advantages = Float64 | np.ma.MaskedArray[Any, Any]
"""Advantages [G] of a group's attempts. A masked attempt is left out of the step."""

POLICY, IMITATION = "policy", "sft"
"""The losses of rows: of a policy gradient, and of supervised samples."""


class Retry(NamedTuple):
    """A retry in a batch: the group in which it is trained, the group that stores it, its slot."""

    into: str
    group_id: str
    slot: int


def keep_only(values: Float64, keep: Bool) -> Advantages:
    """Returns advantages [G], masked except for the attempts in `keep`."""
    return np.ma.masked_array(np.where(keep, values, 0.0), mask=~keep)  # type: ignore[no-untyped-call]


def kept(values: Advantages) -> Bool:
    """Returns which attempts are trained, bool [G]."""
    return ~np.ma.getmaskarray(values)  # type: ignore[no-untyped-call, no-any-return]


def plain(values: Advantages) -> Float64:
    """Returns advantages [G] without their mask. The value for an attempt that is left out has no
    meaning."""
    return np.ma.getdata(values)  # type: ignore[no-untyped-call, no-any-return]


@dataclass(frozen=True)
class Row:
    """One training sequence: arrays of shape [L], truncated after the last trained token.

    `mask` bool: trained tokens. `advantages` float32. `weights` float64: weight of each token in
    the loss. `loss`: which part of the algorithm's loss the row belongs to. `old_logprobs` float32:
    log-probabilities at sampling. `reference` float32: those of the reference model, if the
    algorithm asked for them. `temperature`: the policy is ∝ exp(logits / temperature).

    For metrics: `distilled`: the row is of a retry; `old_logprobs` then belong to another context,
    the one with guidance. `reused`: the attempt was recalled, or its group was replayed. `fresh`:
    tokens that an engine sampled with the learner's current weights, in exactly this row's context.
    `source`: the attempt that became this row. `measured`: whether `old_logprobs` are known.
    """

    token_ids: Int32
    mask: Bool
    old_logprobs: Float32
    advantages: Float32
    weights: Float64
    loss: str = POLICY
    reference: Float32 | None = None
    distilled: bool = False
    temperature: float = 1.0
    reused: bool = False
    fresh: Bool | None = None
    source: Source | None = None
    measured: bool = True

    def __post_init__(self) -> None:
        for name in ("mask", "old_logprobs", "advantages", "weights", "reference", "fresh"):
            held = getattr(self, name)
            shape = getattr(held, "shape", type(held).__name__)
            if held is not None and shape != self.token_ids.shape:
                raise UserError(
                    f"a row of {len(self.token_ids)} tokens has {name} of shape {shape}; give an "
                    "array with one value for each token"
                )

    @property
    def learns(self) -> bool:
        """Whether any trained token has an advantage other than 0."""
        return bool(self.advantages[self.mask].any())

    @property
    def retry(self) -> "Retry | None":
        """The retry whose main conversation this row is, or None."""
        if self.source is None or self.source.attempt.of < 0:
            return None
        return Retry(self.source.into, self.source.group_id, int(self.source.attempt.slot))

    def scaled(self, factor: float) -> "Row":
        """Returns the row with its weights multiplied by `factor`."""
        return replace(self, weights=self.weights * factor)


class Counted(NamedTuple):
    """The rows of one attempt or sample, the number |τ| of tokens over which it is averaged, and
    the id of its group."""

    rows: list[Row]
    length: int
    group: str


def policy(
    batch: Batch,
    advantages: Sequence[Advantages],
    masks: Sequence[Sequence[Bool]],
    normalize: Normalize,
    by_token: Sequence[Sequence[Float64]] | None = None,
) -> list[Counted]:
    """Makes the rows of a batch's attempts. `advantages`: [G] for each group. `masks`: the trained
    tokens of each attempt's main conversation, bool [L]. `by_token`: advantages of single tokens,
    float64 [L] for each attempt, in place of the attempt's own. Raises UserError if lengths or
    values do not fit."""
    _check(batch, advantages, masks)
    counted = []
    for number, group in enumerate(batch.groups):
        sources, values = batch.sources(group), advantages[number]
        lengths = credit.lengths(normalize, [s.attempt for s in sources], masks[number])
        for i in np.flatnonzero(kept(values)):
            own = None if by_token is None else by_token[number][i]
            rows = _rows_of(batch, sources[i], masks[number][i], float(values[i]), own)
            rows = [row.scaled(batch.weight(number)) for row in rows]
            counted.append(Counted(rows, lengths[i], group.group_id))
    return counted


def imitation(
    group: Group, token_ids: Int32, mask: Bool, weight: float = 1.0, loss: str = IMITATION
) -> Counted:
    """Makes a supervised row: the policy learns the tokens that `mask` marks. `weight`: w_g."""
    row = supervised(token_ids, mask, weight, loss)
    return Counted([row], int(row.mask.sum()), group.group_id)


def supervised(token_ids: Int32, mask: Bool, weight: float = 1.0, loss: str = IMITATION) -> Row:
    """Makes a supervised row by itself. The temperature of 1 leaves the likelihood unchanged."""
    end = _end(mask)
    zeros = np.zeros(end, np.float32)
    return Row(token_ids[:end], mask[:end], zeros, zeros, np.full(end, weight), loss=loss)


def weigh(
    counted: Sequence[Counted], normalize: Normalize, among: Sequence[Counted] | None = None
) -> list[Row]:
    """Multiplies the weights of each row by c (r3l.algorithms.credit.token_weights). `counted`: all
    rows that are averaged together. `among`: the rows to average over, if they are not `counted`.
    With many rows in `among`, each of a few rows in `counted` weighs as much as one of the many."""
    lengths, groups = [each.length for each in counted], [each.group for each in counted]
    others = None if among is None else ([e.length for e in among], [e.group for e in among])
    shares = credit.token_weights(normalize, lengths, groups, among=others)
    pairs = zip(counted, shares, strict=True)
    return [row.scaled(share) for each, share in pairs for row in each.rows]


def with_gradient(rows: Iterable[Row], *, penalized: bool = False) -> list[Row]:
    """Leaves out empty rows, and rows of the policy loss without an advantage other than 0.
    `penalized`: keeps these rows, since a penalty gives them a gradient."""
    return [r for r in rows if len(r.mask) and (r.loss != POLICY or r.learns or penalized)]


def count_tokens(counted: Iterable[Counted]) -> int:
    """Returns the number of tokens of rows, read or trained."""
    return sum(len(row.mask) for each in counted for row in each.rows)


def reference_queries(
    batch: Batch, advantages: Sequence[Advantages], masks: Sequence[Sequence[Bool]]
) -> list[Query]:
    """Asks for the reference model's log-probabilities of all tokens that `policy` trains. The
    arguments are those of `policy`."""
    _check(batch, advantages, masks)
    queries = []
    for number, group in enumerate(batch.groups):
        sources = batch.sources(group)
        for i in np.flatnonzero(kept(advantages[number])):
            source, mask = sources[i], masks[number][i]
            for c, (each, own) in enumerate(_conversations(source.attempt, mask)):
                if end := _end(own):
                    key, heat = key_of("reference", source, c), each.temperature or 1.0
                    query = Query(key, each.token_ids[:end], own[:end], temperature=heat)
                    queries.append(replace(query, weights="reference"))
    return queries


def _check(batch: Batch, advantages: Sequence[Advantages], masks: Sequence[Sequence[Bool]]) -> None:
    """Raises UserError unless advantages and masks fit the batch."""
    for name, found in (("advantages", advantages), ("masks", masks)):
        if len(found) != len(batch.groups):
            raise UserError(
                f"{name} for {len(found)} groups, but the batch has {len(batch.groups)}; return "
                "one entry for each group"
            )
    for group, values, own in zip(batch.groups, advantages, masks, strict=True):
        attempts = batch.attempts(group)
        if (
            np.shape(values) != (len(attempts),)
            or not np.isfinite(plain(values)[kept(values)]).all()
        ):
            raise UserError(
                f"group {group.group_id}: advantages {values} of {len(attempts)} attempts; they "
                "must be one finite number for each attempt, masked if it is left out"
            )
        shapes = [np.shape(mask) for mask in own]
        if shapes != [attempt.token_ids.shape for attempt in attempts]:
            raise UserError(
                f"group {group.group_id}: masks of shapes {shapes} for attempts of "
                f"{[len(attempt.token_ids) for attempt in attempts]} tokens; return one mask for "
                "each attempt, with one value for each token"
            )


def _rows_of(
    batch: Batch, source: Source, mask: Bool, advantage: float, by_token: Float64 | None
) -> list[Row]:
    """Makes the rows of one attempt, one for each conversation. The first has the source."""
    rows, attempt = [], source.attempt
    reused = source.into in batch.replayed or source.into != source.group_id
    for c, (each, own) in enumerate(_conversations(attempt, mask)):
        end = _end(own)
        values = np.full(end, advantage, np.float32)
        if c == 0 and by_token is not None:
            values = by_token[:end].astype(np.float32)
        reference = batch.answers.get(key_of("reference", source, c))
        fresh = _sampled_at(each, batch.version)
        rows.append(
            Row(
                each.token_ids[:end],
                own[:end],
                each.logprobs[:end],
                values,
                np.ones(end),
                reference=None if reference is None else reference[:end],
                distilled=attempt.shown is not None or attempt.of >= 0,
                # Log-probabilities of a greedy attempt are stored at 1 (r3l.records.Trajectory).
                temperature=each.temperature or 1.0,
                reused=reused,
                fresh=None if fresh is None else fresh[:end],
                source=source if c == 0 else None,
                measured=each.has_logprobs,
            )
        )
    return rows


def _conversations(attempt: Trajectory, mask: Bool) -> list[tuple[Trajectory, Bool]]:
    """Returns the conversations of an attempt with their masks. `mask`: that of the main
    conversation."""
    masks = [mask, *credit.further_masks(attempt, mask)]
    return list(zip(attempt.conversations(), masks, strict=True))


def _sampled_at(attempt: Trajectory, version: int | None) -> Bool | None:
    """Marks the tokens of each step that was sampled by `version` alone. Returns None for an
    attempt that was sampled in a context other than its row's."""
    if version is None or attempt.of >= 0 or attempt.shown is not None:
        return None
    if not attempt.has_logprobs:
        return None
    fresh = np.zeros(len(attempt.token_ids), dtype=np.bool_)
    only = (attempt.step_versions == version) & (attempt.step_newest_versions == version)
    for start, end in attempt.step_spans[only]:
        fresh[start:end] = True
    return fresh


def _end(mask: Bool) -> int:
    """Returns the position after the last trained token, 0 if there is none."""
    return int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0

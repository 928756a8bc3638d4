"""Answers queries about token sequences (r3l.algorithms.queries), without gradients.

    queries ─► one pass for each kind of weights ─► micro-batches ─► scores, perhaps of other ranks
                                                                       │
    answers ◄── the masked tokens of each row ◄────────────────────────┘

Axes: B rows, T positions, M masked tokens of some rows, k likeliest tokens.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from r3l.algorithms.queries import Answer, Query, TopK, Weights
from r3l.algorithms.rows import Row
from r3l.errors import UserError
from r3l.records import Float32, Int32
from r3l.training.micro_batch import MicroBatch, collate
from r3l.training.model import Scores

Pass = tuple[Weights, int]
"""The weights under which a pass reads, and how many of the likeliest tokens it finds."""
Score = Callable[[Weights, MicroBatch, int], Scores]
"""Scores the tokens of a micro-batch and the `top` likeliest ones under some weights."""
Cut = Callable[[Sequence[Row]], Iterable[list[Row]]]
"""Returns micro-batches of rows."""


class Found(NamedTuple):
    """What was found for the M masked tokens of a micro-batch: log-probabilities and entropies,
    float32 [M]; the k likeliest tokens, int32 [M, k], and their log-probabilities, float32 [M,
    k]."""

    logprobs_M: Float32
    entropy_M: Float32
    ids_Mk: Int32
    tops_Mk: Float32


@dataclass(frozen=True)
class _Asked(Row):
    """The row of a query. `number`: its place among the queries."""

    number: int = 0


class Answers:
    """The answers of queries. `keep` adds what was found for some rows of a pass; another process
    may have computed it."""

    def __init__(
        self, queries: Sequence[Query], held: Collection[Weights], vocabulary: int | None
    ) -> None:
        """Raises UserError if a query has wrong arrays or asks for weights that are not `held`."""
        _check(queries, held, vocabulary)
        self._answers: list[Answer] = [_nothing(query) for query in queries]
        self.queries = list(queries)
        self.passes: dict[Pass, list[Row]] = {}
        for number, query in enumerate(queries):
            if query.mask.any():
                kind = query.weights, int(query.k)
                self.passes.setdefault(kind, []).append(_row(query, number))

    @property
    def longest(self) -> int:
        """The length of the longest sequence that is read, in tokens."""
        return max((len(row.token_ids) for rows in self.passes.values() for row in rows), default=0)

    @torch.no_grad()
    def fill(self, score: Score, cut: Cut, device: torch.device) -> None:
        """Computes the answers of all rows that `cut` returns."""
        for (weights, top), rows in self.passes.items():
            for own in cut(rows):
                self.keep(own, found_in(own, score(weights, collate(own, device), top)))

    def keep(self, rows: Sequence[Row], found: Found) -> None:
        """Adds what was found for some rows of a pass, in the order of these rows."""
        end = 0
        for row in rows:
            assert isinstance(row, _Asked)
            at, end, length = end, end + int(row.mask.sum()), len(row.mask)
            answer, query = self._answers[row.number], self.queries[row.number]
            if isinstance(answer, TopK):
                answer.token_ids[:length][row.mask] = found.ids_Mk[at:end]
                answer.logprobs[:length][row.mask] = found.tops_Mk[at:end]
            else:
                values = found.entropy_M if query.find == "entropy" else found.logprobs_M
                answer[:length][row.mask] = values[at:end]

    def read(self) -> dict[Hashable, Answer]:
        """Returns the answers by their keys."""
        return {query.key: one for query, one in zip(self.queries, self._answers, strict=True)}


def found_in(rows: Sequence[Row], scores: Scores) -> Found:
    """Picks the scores of the masked tokens out of the scores of whole rows."""
    mask_BT = np.zeros(scores[0].shape[:2], np.bool_)
    for row, mask_T in zip(rows, mask_BT, strict=False):  # an empty micro-batch has a row
        mask_T[: len(row.mask)] = row.mask
    logprobs, entropy, *top = (each.cpu().numpy()[mask_BT] for each in scores)
    none = np.zeros((len(logprobs), 0))
    ids, tops = top or (none, none)
    return Found(
        logprobs.astype(np.float32),
        entropy.astype(np.float32),
        ids.astype(np.int32),
        tops.astype(np.float32),
    )


def _nothing(query: Query) -> Answer:
    """Makes an answer of zeros."""
    if query.find != "topk":
        return np.zeros(len(query.token_ids), np.float32)
    shape = (len(query.token_ids), query.k)
    return TopK(np.zeros(shape, np.int32), np.zeros(shape, np.float32))


def _row(query: Query, number: int) -> Row:
    """Makes the row of a query, which ends after its last masked token."""
    end = int(np.flatnonzero(query.mask)[-1]) + 1
    zeros = np.zeros(end, np.float32)
    ids, mask = query.token_ids[:end], query.mask[:end]
    heat = query.temperature
    return _Asked(ids, mask, zeros, zeros, np.zeros(end), temperature=heat, number=number)


def _check(queries: Sequence[Query], held: Collection[Weights], vocabulary: int | None) -> None:
    keys = set[Hashable]()
    for query in queries:
        length = len(query.token_ids)
        problem = ""
        if query.key in keys:
            problem = "another query has this key; give each its own"
        elif query.weights not in held:
            problem = (
                f"asks under the {query.weights} weights, which this trainer does not hold; name "
                "them in the algorithm's `needs`"
            )
        elif query.mask.shape != (length,) or query.mask.dtype != np.bool_:
            problem = f"its mask must be bool of shape ({length},), as its tokens are"
        elif length and query.mask[0]:
            problem = "asks about the first token, which nothing predicts; mask it out"
        elif query.temperature <= 0:
            problem = f"its temperature is {query.temperature}; it must be above 0"
        elif (query.find == "topk") != (query.k > 0):
            problem = f"k is {query.k}; topk needs one token or more, other queries none"
        elif vocabulary and query.k > vocabulary:
            problem = f"k is {query.k}, but the model's vocabulary has {vocabulary} tokens"
        if problem:
            raise UserError(f"query {query.key!r:.80}: {problem}")
        keys.add(query.key)

"""Answers queries about token sequences (r3l.algorithms.queries), without gradients.

    queries ─► one pass for each kind of weights ─► micro-batches, shared among the ranks
                                                          │ each rank fills in its part
    answers, equal on all ranks ◄── added over the ranks ◄┘

Axes: B rows, T positions, K masked tokens of all queries, k likeliest tokens.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from r3l.algorithms.queries import Answer, Query, TopK, Weights
from r3l.algorithms.rows import Row
from r3l.errors import UserError
from r3l.training.micro_batch import MicroBatch, collate
from r3l.training.model import Scores

Score = Callable[[Weights, MicroBatch, int], Scores | None]
"""Scores the tokens of a micro-batch and the `top` likeliest ones under some weights. None if this
rank cannot."""
Cut = Callable[[Sequence[Row]], list[list[Row]]]
"""Returns this rank's micro-batches of rows, as many as every other rank has."""


@dataclass(frozen=True)
class _Asked(Row):
    """The row of a query. `number`: its place among the queries."""

    number: int = 0


class Answers:
    """Answers of queries, in parts: `fill` computes those of this rank, the caller adds the
    `parts` of all ranks, and `read` returns the answers."""

    def __init__(
        self, queries: Sequence[Query], held: Collection[Weights], vocabulary: int | None
    ) -> None:
        """Raises UserError if a query has wrong arrays or asks for weights that are not `held`."""
        self.queries = list(queries)
        _check(self.queries, held, vocabulary)
        sizes = [int(query.mask.sum()) for query in self.queries]
        tops = [size * query.k for size, query in zip(sizes, self.queries, strict=True)]
        numbers = [top or size for size, top in zip(sizes, tops, strict=True)]
        self._places = np.concatenate([[0], np.cumsum(numbers, dtype=np.int64)])
        self._id_places = np.concatenate([[0], np.cumsum(tops, dtype=np.int64)])
        self.numbers_K = np.zeros(self._places[-1], np.float32)
        self.ids_K = np.zeros(self._id_places[-1], np.int32)
        self._passes: dict[tuple[Weights, int], list[Row]] = {}
        for number, query in enumerate(self.queries):
            if sizes[number]:
                self._passes.setdefault((query.weights, query.k), []).append(_row(query, number))

    @property
    def longest(self) -> int:
        """The length of the longest sequence that is read, in tokens."""
        return max(
            (len(row.token_ids) for rows in self._passes.values() for row in rows), default=0
        )

    @property
    def parts(self) -> list[Tensor]:
        """The arrays that hold this rank's answers, with 0 for those of others."""
        return [torch.from_numpy(part) for part in (self.numbers_K, self.ids_K)]

    @torch.no_grad()
    def fill(self, score: Score, cut: Cut, device: torch.device) -> None:
        """Computes this rank's answers. All ranks call `score` equally often."""
        self.numbers_K[:], self.ids_K[:] = 0.0, 0
        for (weights, top), rows in self._passes.items():
            for own in cut(rows):
                scores = score(weights, collate(own, device), top)
                if scores is not None:
                    self._keep(own, scores)

    def _keep(self, rows: Sequence[Row], scores: Scores) -> None:
        on_host = [each.cpu().numpy() for each in scores]
        for i, row in enumerate(rows):
            assert isinstance(row, _Asked)
            find, length = self.queries[row.number].find, len(row.token_ids)
            found = on_host[{"logprobs": 0, "entropy": 1, "topk": 3}[find]][i, :length][row.mask]
            at, end = self._places[row.number : row.number + 2]
            self.numbers_K[at:end] = found.ravel()
            if find == "topk":
                at, end = self._id_places[row.number : row.number + 2]
                self.ids_K[at:end] = on_host[2][i, :length][row.mask].ravel()

    def read(self) -> dict[Hashable, Answer]:
        """Returns the answers by their keys."""
        return {query.key: self._read(n, query) for n, query in enumerate(self.queries)}

    def _read(self, number: int, query: Query) -> Answer:
        at, end = self._places[number : number + 2]
        if query.find != "topk":
            found = np.zeros(len(query.token_ids), np.float32)
            found[query.mask] = self.numbers_K[at:end]
            return found
        shape = (len(query.token_ids), query.k)
        ids, logprobs = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        logprobs[query.mask] = self.numbers_K[at:end].reshape(-1, query.k)
        at, end = self._id_places[number : number + 2]
        ids[query.mask] = self.ids_K[at:end].reshape(-1, query.k)
        return TopK(ids, logprobs)


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

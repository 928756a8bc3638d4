"""Queries: what an algorithm asks the model before it makes its rows.

    queries(batch) ─► one pass without gradients, over all ranks ─► batch.answers ─► rows(batch)

Each query reads one token sequence under some weights: the current ones, those of the reference
model, or a running average of the current ones.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

from r3l.algorithms.batch import Batch, Source
from r3l.errors import UserError
from r3l.records import Bool, Float32, Int32

Weights = Literal["current", "reference", "averaged"]
Quantity = Literal["logprobs", "entropy", "topk"]


@dataclass(frozen=True)
class Query:
    """Asks for a quantity at the masked tokens of a sequence.

    `key`: names the answer in `Batch.answers`. `token_ids` int32 [L], `mask` bool [L]. `find`:
    "logprobs" (of the tokens themselves) or "entropy" (of the distributions they were drawn from),
    both in nats, answered as float32 [L], 0 outside the mask; or "topk", answered as TopK of `k`
    tokens for each position. `temperature`: the policy is ∝ exp(logits / temperature).
    """

    key: Hashable
    token_ids: Int32
    mask: Bool
    find: Quantity = "logprobs"
    weights: Weights = "current"
    temperature: float = 1.0
    k: int = 0


@dataclass(frozen=True)
class TopK:
    """The most likely tokens at each position. `token_ids` int32 [L, k], `logprobs` float32 [L, k]:
    0 outside the mask."""

    token_ids: Int32
    logprobs: Float32


Answer = Float32 | TopK


def key_of(what: str, source: Source, conversation: int = 0) -> Hashable:
    """Returns the key of a query about a conversation of an attempt in a batch."""
    return what, source.into, source.group_id, int(source.attempt.slot), conversation


def answer_of(batch: Batch, key: Hashable) -> Any:
    """Returns the answer of a query. Raises UserError if the batch has none."""
    if key not in batch.answers:
        raise UserError(
            "this batch lacks the answers of its queries; before algorithm.rows, call "
            "batch = trainer.answer(batch, algorithm.queries(batch))"
        )
    return batch.answers[key]

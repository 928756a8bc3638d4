"""Makes the rows of a draw, and describes them for the metrics and for the ledger.

draw ─► queries ─► answers of the model ─► rows ─┬─► the step
                                                 ├─► metrics of the loss weights
                                                 └─► how each attempt was trained
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from buffer.storage.stored_rows import TrainedAttempt
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import IMITATION, POLICY, Row
from r3l.errors import UserError
from r3l.records import Int32, Trajectory
from r3l.rollout.chat import ChatFormat
from r3l.training.micro_batch import check_tokens
from r3l.training.step_loss import AnyBatch, blame


@dataclass(frozen=True)
class DrawRows(Generic[AnyBatch]):
    """The rows of one step. `batch`: the draw, with the answers of its queries. `metrics`: seconds
    spent, and weights of the loss."""

    batch: AnyBatch
    rows: list[Row]
    metrics: dict[str, float]


def make_rows(
    trainer: DeepSpeedTrainer,
    algorithm: Algorithm,
    batch: AnyBatch,
    chat: Callable[[], ChatFormat] | None = None,
) -> DrawRows[AnyBatch]:
    """Asks the model what the algorithm wants to know, and makes the rows. Only rank 0 has the
    batch and gets the rows; the other ranks help to answer. `chat`: makes the model's chat format.
    Raises UserError for tokens outside the vocabulary and for what the algorithm does wrong.
    Collective."""
    if trainer.rank:
        trainer.answers(())
        return DrawRows(batch, [], {})
    began = time.monotonic()
    check_tokens(_sequences(batch), trainer.vocabulary)
    batch = replace(batch, chat=chat)
    with blame(algorithm.queries):
        queries = algorithm.queries(batch)
    asked = time.monotonic()
    batch = trainer.answer(batch, queries)
    answered = time.monotonic()
    with blame(algorithm.rows):
        rows = algorithm.rows(batch)
        _check(rows)
    metrics = {"learner/pack_s": time.monotonic() - began - (answered - asked)}
    if queries:
        metrics["learner/queries_s"] = answered - asked
    metrics |= weight_metrics(rows, float(getattr(algorithm, "sft_weight", 1.0)))
    return DrawRows(batch, rows, metrics)


def _check(rows: object) -> None:
    if not isinstance(rows, list) or not all(isinstance(row, Row) for row in rows):
        raise UserError(f"returned {rows!r:.80}; it must return a list of r3l.algorithms.rows.Row")
    # Here, since a loss that finds it would end one rank alone.
    if any(row.mask[:1].any() for row in rows):
        raise UserError(
            "returned a row that trains its first token, which nothing predicts; mask it out"
        )


def _sequences(batch: Batch) -> Iterator[tuple[str, Int32]]:
    """Yields the token sequences of a batch, each with the name of its group."""
    attempts = [(g.group_id, t) for g in batch.groups for t in g.trajectories]
    attempts += [(recalled.group_id, recalled.trajectory) for recalled in batch.recalled]
    for group_id, attempt in attempts:
        for each in attempt.conversations():
            yield f"group {group_id}", each.token_ids
        if attempt.shown is not None:
            yield f"group {group_id}", attempt.shown.tokens
    for group in batch.groups:
        for reflection in group.reflections:
            yield f"group {group.group_id}", reflection.token_ids


def weight_metrics(rows: Sequence[Row], sft_weight: float) -> dict[str, float]:
    """Computes metrics of the loss weights. `aux_samples`: the number of auxiliary rows: the rows
    of every loss except the policy's. `aux_share`: their share of the total weight.
    `largest_token_weight`: largest / mean weight of a token outside auxiliary rows. `sft_weight`:
    λ, weight of the loss `sft`; other losses have only the weights of their rows."""
    aux = [row for row in rows if row.loss != POLICY]
    weights = [row.weights[row.mask] for row in rows if row.loss == POLICY]
    policy = np.concatenate([*weights, np.zeros(0)]).astype(np.float64)
    mass, aux_mass = float(policy.sum()), 0.0
    for row in aux:
        own = sft_weight if row.loss == IMITATION else 1.0
        aux_mass += own * float(row.weights[row.mask].sum(dtype=np.float64))
    metrics = {"group/aux_samples": float(len(aux))}
    if mass + aux_mass:
        metrics["learner/aux_share"] = aux_mass / (mass + aux_mass)
    if mass:
        metrics["learner/largest_token_weight"] = float(policy.max()) * len(policy) / mass
    return metrics


def trained_attempts(
    rows: Iterable[Row], reliance: Mapping[tuple[str, str, int], float] | None = None
) -> tuple[TrainedAttempt, ...]:
    """Describes how a step trained on each attempt that became a row. `reliance`: Δ of each retry,
    as in r3l.training.step_loss.StepResult."""
    known = reliance or {}
    return tuple(_trained(row, *row.source, known) for row in rows if row.source is not None)


def _trained(
    row: Row,
    into: str,
    group_id: str,
    attempt: Trajectory,
    reliance: Mapping[tuple[str, str, int], float],
) -> TrainedAttempt:
    advantages, weights = row.advantages[row.mask], row.weights[row.mask]
    first = np.searchsorted(attempt.step_spans[:, 1], np.argmax(row.mask), side="right")
    return TrainedAttempt(
        into=into,
        group_id=group_id,
        slot=attempt.slot,
        advantage=float(advantages.mean(dtype=np.float64)),
        first_step=int(first),
        weight=float(weights.mean(dtype=np.float64)),
        by_token=bool((advantages != advantages[0]).any()),
        reliance=reliance.get((into, group_id, attempt.slot)),
    )

"""Measures how long attempts and responses are, and how many were cut off."""

from collections.abc import Sequence

import numpy as np

from learner.evaluation.conversation import Conversation
from r3l.records import Group

OVERFLOW = "context_overflow"  # the finish of an attempt, and the cause of one without a step


def length_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Returns the lengths of attempts and responses in tokens, and the shares that were cut off.
    Leaves out a retry's responses before the pivot."""
    attempts = [t for group in groups for t in group.trajectories]
    spans = [span for t in attempts for span in t.step_spans[t.first_played :].tolist()]
    return _measure(
        [len(t.token_ids) for t in attempts],
        [end - start for start, end in spans],
        cut=sum(t.cut_responses for t in attempts),
        overflowed=sum(t.finish == OVERFLOW for t in attempts),
        without_room=sum(r.cause == OVERFLOW for group in groups for r in group.results),
    )


def lengths_of(attempts: Sequence[Conversation]) -> dict[str, float]:
    """Like `length_metrics`, for the attempts of an evaluation."""
    return _measure(
        [attempt.length for attempt in attempts if attempt.length is not None],
        [step.length for attempt in attempts for step in attempt.steps],
        cut=sum(attempt.cut for attempt in attempts),
        overflowed=sum(attempt.finish == OVERFLOW for attempt in attempts),
        without_room=sum(attempt.cause == OVERFLOW for attempt in attempts),
    )


def _measure(
    attempts: Sequence[int],
    responses: Sequence[int],
    *,
    cut: int,
    overflowed: int,
    without_room: int,
) -> dict[str, float]:
    metrics = {}
    if count := len(attempts) + without_room:
        metrics["cut_attempts"] = (overflowed + without_room) / count
    if responses:
        metrics["cut_responses"] = cut / len(responses)
    for name, lengths in (("length", attempts), ("response", responses)):
        if lengths:
            metrics[f"{name}_mean"] = float(np.mean(lengths))
            metrics[f"{name}_p95"] = float(np.quantile(lengths, 0.95))
            metrics[f"{name}_max"] = float(max(lengths))
    return metrics

"""How long attempts and responses are, and how many are cut off: by the context, by their budget.

What is cut off cannot succeed, however good the policy is; so people are told above WARN_ABOVE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from r3l.records import Group
from r3l.settings.actor import ActorConfig

WARN_ABOVE = 0.2
OVERFLOW = "context_overflow"  # the finish of an attempt, and the cause of one without a step


def truncation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Lengths in tokens and shares cut off, of all attempts of `groups`, retries included; nothing
    without attempts. A retry's responses are those from its pivot on."""
    attempts = [t for group in groups for t in group.trajectories]
    without_room = sum(r.cause == OVERFLOW for group in groups for r in group.results)
    metrics = {}
    if count := len(attempts) + without_room:
        overflowed = sum(t.finish == OVERFLOW for t in attempts)
        metrics["cut_attempts"] = (overflowed + without_room) / count
    if attempts:
        spans = np.concatenate([t.step_spans[max(t.pivot, 0) :] for t in attempts])
        responses = spans[:, 1] - spans[:, 0]
        metrics["cut_responses"] = sum(t.cut for t in attempts) / len(responses)
        for name, lengths in (
            ("length", np.array([len(t.token_ids) for t in attempts])),
            ("response", responses),
        ):
            metrics[f"{name}_mean"] = float(lengths.mean())
            metrics[f"{name}_p95"] = float(np.quantile(lengths, 0.95))
            metrics[f"{name}_max"] = float(lengths.max())
    return metrics


class TruncationWarning:
    """Warnings for people, each said once until the share was small again."""

    def __init__(self, config: ActorConfig) -> None:
        self.config = config
        self._said: set[str] = set()

    def lines(self, metrics: Mapping[str, float], of: str) -> list[str]:
        """The warnings that the metrics of `of` (a step, an evaluation) call for."""
        budget = self.config.max_response_tokens
        setting = f"actor.max_response_tokens={budget}" if budget else "what the environment sets"
        texts = {
            "cut_attempts": "of the attempts were cut off by the context "
            f"(actor.max_model_len={self.config.max_model_len}); raise it, or let responses or "
            "observations be shorter",
            "cut_responses": f"of the responses were cut off by their budget ({setting}); raise "
            "actor.max_response_tokens",
        }
        lines = []
        for name, text in texts.items():
            share = metrics.get(name, 0.0)
            if share <= WARN_ABOVE:
                self._said.discard(f"{name} of {of}")
            elif f"{name} of {of}" not in self._said:
                self._said.add(f"{name} of {of}")
                lines.append(f"{share:.0%} {text} ({of})")
        return lines

"""Rates and shares of what the actors have counted lately.

totals of all actors ─► the last reports ─► rates of RATES_S seconds, shares of SHARE_STEPS steps
"""

from collections import deque
from collections.abc import Mapping

from learner.metrics.group_metrics import Metrics

RATES = {"actor/tokens_per_s": "actor/generated_tokens", "agent/calls_per_s": "agent/calls"}
"""Rates, each with the count from which it is computed."""
RATES_S = 5.0
"""Fewest seconds that a rate or a share covers: a step may be shorter than the 2 s between actors'
reports."""
SHARES = {
    "agent/trained_share": ("agent/tokens_trained", "agent/tokens_sampled"),
    "agent/shapes_missed_share": ("agent/shapes_missed", "agent/shapes_asked"),
}
"""Shares, each with the counts of its part and of the whole."""
SHARE_STEPS = 5
"""Fewest steps that a share covers, as in launch.inspection.agent_training: attempts of agents may
be longer than a step."""


class RecentCounts:
    """Keeps the actors' totals of the last steps. `now`: seconds of a monotonic clock. `totals`: as
    actor_metrics (learner.metrics.buffer_metrics) gives them."""

    def __init__(self, now: float, totals: Mapping[str, float]) -> None:
        self._reports = deque[tuple[float, Mapping[str, float]]]([(now, totals)])

    def add(self, now: float, totals: Mapping[str, float]) -> Metrics:
        """Takes in the totals at a step. Returns the rates and shares. Leaves out a share whose
        denominator has not grown."""
        self._reports.append((now, totals))
        while len(self._reports) > SHARE_STEPS + 1 and self._reports[1][0] <= now - RATES_S:
            self._reports.popleft()
        return self._rates(now, totals) | self._shares(totals)

    def _rates(self, now: float, totals: Mapping[str, float]) -> Metrics:
        old = [report for report in self._reports if report[0] <= now - RATES_S]
        then, before = old[-1] if old else self._reports[0]
        # A sum is smaller after a restart of the buffer, until every actor has reported again.
        return {
            rate: max(totals[total] - before.get(total, 0.0), 0.0) / max(now - then, 1e-6)
            for rate, total in RATES.items()
            if total in totals
        }

    def _shares(self, totals: Mapping[str, float]) -> Metrics:
        _, before = self._reports[0]
        shares: Metrics = {}
        for share, counts in SHARES.items():
            part, whole = (totals.get(name, 0.0) - before.get(name, 0.0) for name in counts)
            if whole > 0 and 0 <= part <= whole:  # not so while actors report again
                shares[share] = part / whole
        return shares

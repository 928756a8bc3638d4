"""Splits a group's staleness by cause: the versions between its oldest token and its draw.

    oldest ──► newest of its base attempts ──► newest ──► the learner's, when it ──► the learner's,
     step                                       step       is completed               when drawn
       └─ from_sampling ─────┴─ from_retry ──────┴─ from_lag ───┴─ from_queue ──────────┘

The four add up to the group's staleness.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from learner.metrics.group_metrics import Metrics, finite, mean
from r3l.records import Group

REMEMBERED = 1000
CAUSES = ("from_sampling", "from_retry", "from_lag", "from_queue")


class CommitTimes:
    """Remembers when this learner reached each version. Uses the wall clock, like the buffer."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._first = 0

    def add(self, version: int, at: float) -> None:
        """Record that the learner reached `version` at this Unix time."""
        if not self._times:
            self._first = version
        self._times.append(at)
        if len(self._times) > REMEMBERED:
            del self._times[0]
            self._first += 1

    def version(self, at: float) -> int | None:
        """Return the learner's version at this Unix time, or None if it is unknown."""
        reached = bisect_right(self._times, at)
        return self._first + reached - 1 if reached else None


def age_by_cause(group: Group, version: int, commits: CommitTimes) -> list[int] | None:
    """Return the versions that each of CAUSES adds to the age of a group drawn at `version`. None
    if the group has no attempts, or was completed before this learner's first version."""
    completed = commits.version(group.times.get("complete", 0.0))
    attempts = group.trajectories
    if completed is None or not attempts:
        return None
    oldest = group.oldest_version
    newest = max(t.newest_version for t in attempts)
    base = max((t.newest_version for t in attempts if t.role == "base"), default=oldest)
    # The clocks of two machines may differ by a step.
    completed = min(max(completed, newest), version)
    return [base - oldest, newest - base, completed - newest, version - completed]


def cause_metrics(groups: Sequence[Group], version: int, commits: CommitTimes) -> Metrics:
    """Compute `staleness/from_<cause>` and `staleness/spread_s`, as means over the groups."""
    ages = [age for g in groups if (age := age_by_cause(g, version, commits)) is not None]
    spreads = [
        group.times["complete"] - group.times["filling"]
        for group in groups
        if {"filling", "complete"} <= group.times.keys()
    ]
    causes = {f"staleness/{cause}": mean(age[i] for age in ages) for i, cause in enumerate(CAUSES)}
    return finite(causes | {"staleness/spread_s": mean(spreads)})

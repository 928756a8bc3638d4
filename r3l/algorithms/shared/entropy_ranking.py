"""Structural-entropy ranking: rewards for the truncated attempts of a group that failed.

    truncated attempts ─► queries: the entropies of their tokens ─► structure ─► ranks ─► rewards

For an attempt with L sampled tokens, E_peak is the mean of the k = max(1, ⌊p·L⌋) largest token
entropies, and E_global the mean of all. One attempt dominates another if its E_peak is higher and
its E_global lower. Source: R³, arXiv 2601.19620.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from r3l.algorithms.advantages import Float64
from r3l.algorithms.batch import Batch, Source
from r3l.algorithms.queries import Query, key_of
from r3l.records import SUCCESS, Float32, Group, Trajectory

Entropies = Float32 | Float64
Rank = Callable[[Sequence[Entropies]], Float64]
"""Maps the token entropies of N attempts, each [L] in nats, to their rewards, float64 [N]."""


def is_truncated(attempt: Trajectory) -> bool:
    """Whether an attempt was cut off: the environment did not terminate it, or the token budget cut
    off one of its responses."""
    return attempt.finish != "terminated" or attempt.cut_responses > 0


def truncated(group: Group) -> list[int]:
    """Returns which of a group's attempts are ranked, by their place in `group.trajectories`. These
    are the truncated ones, or none if any attempt of the group succeeded."""
    attempts = group.trajectories
    if any(attempt.reward >= SUCCESS for attempt in attempts):
        return []
    return [place for place, attempt in enumerate(attempts) if is_truncated(attempt)]


def queries(batch: Batch) -> Iterator[Query]:
    """Asks for the token entropies of all attempts that are ranked, each in the context that the
    policy read. Skips a group with a single such attempt, which needs no ranking."""
    for group in batch.groups:
        places = truncated(group)
        for place in places if len(places) > 1 else ():
            attempt = group.trajectories[place]
            ids, mask = attempt.as_shown()
            heat = attempt.temperature or 1.0
            yield Query(_key(group, attempt), ids, mask, "entropy", temperature=heat)


def rewards(batch: Batch, group: Group, rank: Rank) -> Float64:
    """Returns the rewards of a group's own attempts, float64 [G]. Truncated attempts have the
    rewards of their ranks, or 0 if there is only one. Without the answers of `queries`, returns the
    rewards that the attempts earned."""
    earned, places = group.rewards, truncated(group)
    if len(places) == 1:
        earned[places] = 0.0
    found = [_entropies(batch, group, group.trajectories[place]) for place in places]
    known = [entropies for entropies in found if entropies is not None]
    if len(places) > 1 and len(known) == len(places):
        earned[places] = rank(known)
    return earned


def ranked(entropies: Sequence[Entropies], *, peak_share: float, largest: float) -> Float64:
    """Maps the token entropies of N attempts, each [L] in nats, to their rewards, float64 [N].

    Attempts are ranked by how many others they dominate, most first. Rank k, from 0, gets
    largest · (1 − k/(N − 1)). Equals share the mean of their ranks' rewards. N = 1 gets 0.
    `peak_share`: p.
    """
    count = len(entropies)
    if count == 1:
        return np.zeros(1)
    peak, whole = np.array([structure(each, peak_share) for each in entropies]).T
    wins = ((peak[:, None] > peak) & (whole[:, None] < whole)).sum(axis=1)
    by_rank = largest * (1 - np.arange(count) / (count - 1))
    order = np.sort(wins)[::-1]
    return np.array([by_rank[order == own].mean() for own in wins])


def structure(entropies: Entropies, peak_share: float) -> tuple[float, float]:
    """Computes (E_peak, E_global) of one attempt; (0, 0) if it has no tokens."""
    if not len(entropies):
        return 0.0, 0.0
    values = np.sort(entropies.astype(np.float64))
    return float(values[-max(1, int(peak_share * len(values))) :].mean()), float(values.mean())


def _entropies(batch: Batch, group: Group, attempt: Trajectory) -> Float32 | None:
    """Returns the entropies of an attempt's sampled tokens, or None if they were not asked for."""
    answer = batch.answers.get(_key(group, attempt))
    return None if answer is None else answer[attempt.as_shown()[1]]


def _key(group: Group, attempt: Trajectory) -> Hashable:
    return key_of("entropy", Source(group.group_id, group.group_id, attempt))

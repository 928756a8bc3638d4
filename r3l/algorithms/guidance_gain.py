"""Guidance gain: the reward of guided retries minus the reward of further attempts. The gain can
decide how many groups get retries.

The gain of a retry of slot i, in a group with n_b ≥ 2 base attempts, is

    d_i = R(retry_i) − (1/(n_b − 1)) Σ_{j≠i} R(base_j)

The mean of d_i is 0 for useless guidance. R(base_i) is left out, because mostly failures are
retried. Group g has n_g retries and the sum S_g = Σ d_i. Over all groups,

    m = Σ S_g / Σ n_g        se² = Σ (S_g − m·n_g)² / (Σ n_g)²

The gain is not measured if attempts are retried only when all of them failed. The other attempts
then earned little because of this selection, so even useless guidance would seem to help.

The gate gives a group retries with probability q = clip(Φ(m/se), FLOOR, 1). q is computed from the
last GROUPS groups with retries. q is 1 as long as fewer than ENOUGH groups had retries.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

GROUPS, ENOUGH = 64, 16
FLOOR = 1 / 8  # so that guidance is always measured
UNSOLVED = "unsolved"
"""The kind of groups whose attempts are retried only if all of them failed."""


class GroupGain(NamedTuple):
    """S_g of a group, the sum of d_i over its retries; and n_g, the number of its retries."""

    total: float
    slots: int


def of_group(attempts: Iterable[tuple[int, int, float]], kind: str = "") -> GroupGain:
    """Computes a group's gain from (slot, of, reward) of each attempt; `of` is the slot that it
    retried, or -1. The gain is zero without retries, with fewer than two base attempts, or if the
    `kind` of the group's plan is UNSOLVED."""
    attempts = [] if kind == UNSOLVED else list(attempts)
    bases = {slot: reward for slot, of, reward in attempts if of < 0}
    gains = [
        reward - math.fsum(r for j, r in bases.items() if j != of) / (len(bases) - 1)
        for _, of, reward in attempts
        if of in bases and len(bases) > 1
    ]
    return GroupGain(math.fsum(gains), len(gains))


def estimate(gains: Sequence[GroupGain]) -> tuple[float, float]:
    """Computes m and se. Both are NaN if no slot was retried."""
    slots = sum(gain.slots for gain in gains)
    if not slots:
        return math.nan, math.nan
    m = math.fsum(gain.total for gain in gains) / slots
    return m, math.sqrt(math.fsum((g.total - m * g.slots) ** 2 for g in gains)) / slots


def retry_probability(gains: Sequence[GroupGain]) -> float:
    """Computes q from the gains of groups, newest first. Groups without retries do not count."""
    known = [gain for gain in gains if gain.slots][:GROUPS]
    if len(known) < ENOUGH:
        return 1.0
    m, se = estimate(known)
    if se == 0.0:
        return 1.0 if m > 0 else 0.5 if m == 0 else FLOOR
    return min(max(0.5 * (1 + math.erf(m / se / math.sqrt(2))), FLOOR), 1.0)

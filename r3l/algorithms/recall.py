"""Recall: a rule adds stored attempts at the same task to a drawn group.

    task's history ─► rule ─► the draw's entry in the ledger ─► rows after the group's own attempts

The buffer service calls the rule (`AlgorithmConfig.recall`) once, when it draws the group. The
draw's entry keeps the choice, so that a resumed or replayed step recalls the same attempts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from r3l.algorithms.advantages import SUCCESS
from r3l.records import Role


@dataclass(frozen=True)
class StoredAttempt:
    """An attempt of a stored group. `version`: the oldest policy version that sampled the group."""

    group_id: str
    role: Role
    slot: int
    reward: float
    version: int

    @property
    def success(self) -> bool:
        return self.reward >= SUCCESS


@dataclass(frozen=True)
class GroupContext:
    """Describes a drawn group to a recall rule. `history`: stored attempts at the same task, newest
    group first, read on demand."""

    rewards: Sequence[float]
    history: Iterable[StoredAttempt]
    version: int  # the learner's


RandomSource = Callable[[], np.random.Generator]
"""Makes the random generator of one choice, if a rule needs it."""

Recall = Callable[[GroupContext, RandomSource], Sequence[StoredAttempt]]


def opposing(
    context: GroupContext,
    source: RandomSource,
    *,
    count: int,
    successes_only: bool = False,
    max_age: int | None = None,
) -> list[StoredAttempt]:
    """If a whole group failed or succeeded, draws up to `count` stored attempts with the other
    outcome. With `successes_only`, draws no failures. `max_age`: in versions. Source: R³, arXiv
    2601.19620."""
    outcomes = {reward >= SUCCESS for reward in context.rewards}
    if len(outcomes) != 1 or (successes_only and True in outcomes):
        return []
    wanted = False in outcomes
    candidates = [
        attempt
        for attempt in context.history
        if attempt.success == wanted
        and (max_age is None or context.version - attempt.version <= max_age)
    ]
    if len(candidates) <= count:
        return candidates
    return [candidates[i] for i in sorted(source().choice(len(candidates), count, replace=False))]

"""Recall: rules that give a drawn group some stored attempts at the same task.

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
    """What a recall rule knows about a drawn group. `rewards`: rewards of the group's own attempts.
    `history`: attempts of the task's earlier groups, newest group first, read on demand. `version`:
    the learner's version."""

    rewards: Sequence[float]
    history: Iterable[StoredAttempt]
    version: int


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
    """Draws up to `count` stored attempts for a group (replay of R³, arXiv 2601.19620): successes
    if the whole group failed, failures if the whole group succeeded and `successes_only` is False,
    else none. All attempts up to `max_age` versions old are equally likely."""
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

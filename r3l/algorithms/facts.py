"""What the buffer service tells an algorithm: facts about groups and stored attempts, without
tokens.

at the lease        LeaseFacts ─► Algorithm.plan
group complete      GroupFacts ─► Algorithm.admits
at the draw         GroupFacts, the task's history ─► Algorithm.recalls
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from r3l.algorithms.guidance_gain import GroupGain
from r3l.records import SUCCESS, Group

RandomSource = Callable[[], np.random.Generator]
"""Makes the random generator of one decision, so that a restarted service decides the same."""


@dataclass(frozen=True)
class StoredAttempt:
    """An attempt of a stored group. `of`: the slot that it retried, or -1. `version`: the oldest
    policy version that sampled the group. `kind`: the kind of the group's plan."""

    group_id: str
    slot: int
    reward: float
    version: int
    of: int = -1
    kind: str = ""

    @property
    def success(self) -> bool:
        return self.reward >= SUCCESS


def attempts_of(group: Group) -> Iterator[StoredAttempt]:
    """Yields the attempts of a stored group."""
    for attempt in group.trajectories:
        yield StoredAttempt(
            group.group_id,
            attempt.slot,
            attempt.reward,
            group.oldest_version,
            attempt.of,
            group.plan.kind,
        )


History = Iterable[StoredAttempt]
"""The stored attempts at a task, newest group first, read on demand."""


@dataclass(frozen=True)
class LeaseFacts:
    """Describes a training group that is about to be leased.

    `epoch`: the current pass over the tasks, from 0. `version`: the learner's. `history`: stored
    attempts at the task. `gains`: guidance gains of the newest groups with retries, newest first.
    """

    task_id: str
    epoch: int
    version: int
    history: History
    gains: Sequence[GroupGain]
    random: RandomSource


@dataclass(frozen=True)
class GroupFacts:
    """Describes a group whose slots all have results. `rewards` and `of` have one value for each
    attempt. `version`: the learner's."""

    task_id: str
    rewards: Sequence[float]
    of: Sequence[int] = ()
    version: int = 0
    kind: str = ""

    @classmethod
    def of_group(cls, group: Group, version: int = 0) -> Self:
        """Returns the facts of a group. `version`: the learner's."""
        attempts = group.trajectories
        return cls(
            group.task.task_id,
            [attempt.reward for attempt in attempts],
            [attempt.of for attempt in attempts],
            version,
            group.plan.kind,
        )

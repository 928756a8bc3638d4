"""Starts inside stored attempts: what PrefixRL, POPE, ExIt and restarts from successes share.

    service   the task's history ─► choose ─► a stored attempt and the group's kind ─► the plan
    actor     start_of ─► a step k of it ─► every slot: its first k steps, replayed, then new ones

All attempts of such a group start at the same step, so that they can be compared: with a prefix, a
task is a different task. The prefix is read and never trained on (r3l.algorithms.credit). All other
groups play the task from its beginning.

An algorithm reads its progress on a task from the history: the kinds of its groups, and how they
ended. A group of kind "" plays from the beginning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from pydantic import Field

from r3l.algorithms.facts import History, LeaseFacts, StoredAttempt
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm
from r3l.records import AttemptKey, GroupPlan, Origin
from r3l.rollout.exploration import Exploration


@dataclass(frozen=True)
class StoredGroup:
    """The attempts of one stored group, and its kind."""

    kind: str
    attempts: Sequence[StoredAttempt]

    @property
    def success(self) -> float:
        """The share of the attempts, retries left out, that succeeded; 0 without attempts."""
        own = [attempt.success for attempt in self.attempts if attempt.of < 0]
        return sum(own) / max(len(own), 1)

    @property
    def variance(self) -> float:
        """The variance of the rewards."""
        return float(np.var([attempt.reward for attempt in self.attempts]))


class Chosen(NamedTuple):
    """The place inside a stored attempt where a group starts. `kind`: the algorithm's word for the
    group's plan."""

    kind: str
    attempt: StoredAttempt


def stored_groups(history: History) -> list[StoredGroup]:
    """Returns the groups of a task, newest first."""
    found = groupby(history, lambda attempt: (attempt.group_id, attempt.kind))
    return [StoredGroup(kind, list(attempts)) for (_, kind), attempts in found]


def numbered(kind: str, number: int) -> str:
    """Returns the kind of a group at a level of a curriculum, such as "restart 2"."""
    return f"{kind} {number}"


def number_of(kind: str, of: str) -> int:
    """Returns the number in a kind that `numbered` made of the word `of`; 0 for other kinds."""
    word, _, number = kind.rpartition(" ")
    return int(number) if word == of and number.isdecimal() else 0


def newest_of(groups: Sequence[StoredGroup], word: str) -> tuple[int, float]:
    """Finds the newest group whose kind is `word` with a number. Returns this number and the
    group's success, or 0 and 0.0 if there is none."""
    for group in groups:
        if number := number_of(group.kind, word):
            return number, group.success
    return 0, 0.0


def random_success(
    groups: Sequence[StoredGroup], random: np.random.Generator
) -> StoredAttempt | None:
    """Draws one of the successes, or returns None if there is none."""
    won = [attempt for group in groups for attempt in group.attempts if attempt.success]
    return won[random.integers(len(won))] if won else None


class StartsInside(RatioAlgorithm):
    """The base of algorithms whose groups may start inside a stored attempt. The loss is GRPO's,
    without a KL."""

    share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a task's groups that start inside a stored attempt, if there is a "
        "suitable one; the others play from the beginning",
    )

    @property
    def looks_back(self) -> str:
        return "starts inside stored attempts" if self.share else ""

    def choose(self, groups: Sequence[StoredGroup], random: np.random.Generator) -> Chosen | None:
        """Chooses where a group starts, from the groups of its task, newest first. Returns None if
        it is to play from the beginning."""
        return None

    def start_of(self, kind: str, steps: int, random: np.random.Generator) -> int:
        """Returns the first step to play, 1 to `steps` − 1, of an attempt of `steps` steps."""
        return int(random.integers(1, steps))

    def advice_of(self, kind: str) -> str:
        """Returns a text that the policy reads after the prefix; "" for none."""
        return ""

    def plan(self, lease: LeaseFacts) -> GroupPlan:
        """Plans a group that gets the chosen attempt. The same lease always gets the same plan."""
        random = lease.random()
        chosen = None
        if random.random() < self.share:
            chosen = self.choose(stored_groups(lease.history), random)
        if chosen is None:
            return super().plan(lease)
        key = AttemptKey(chosen.attempt.group_id, chosen.attempt.slot)
        return GroupPlan(self.group_size, chosen.kind, (key,))

    async def explore(self, x: Exploration) -> None:
        """Plays all attempts from one step of the stored attempt that comes with the plan."""
        start = self._start(x)
        if start is None:
            await super().explore(x)
            return
        advice = self.advice_of(x.plan.kind)
        await x.each(range(x.plan.slots), lambda slot: x.play(slot, context=advice, start=start))

    def _start(self, x: Exploration) -> Origin | None:
        """Returns where all attempts start; None for the beginning. A group that was handed an
        attempt of one step starts at the beginning, since such an attempt has no inside."""
        if not x.plan.handed:
            return None
        key = x.plan.handed[0]
        if not x.handed:  # evicted since it was planned: the slots fail as start_gone
            return Origin(key.group_id, key.slot, 0)
        steps = x.handed[0].trajectory.num_steps
        if steps < 2:
            return None
        return Origin(key.group_id, key.slot, self.start_of(x.plan.kind, steps, x.random))


class FromSuccess(StartsInside):
    """The base of algorithms that start inside successes, at hard tasks alone."""

    hard: float = Field(
        0.5,
        ge=0,
        le=1,
        description="a task is hard if at most this share of the attempts succeeded in the newest "
        "of its groups that played from the beginning",
    )

    def is_hard(self, groups: Sequence[StoredGroup]) -> bool:
        """Whether a task is hard. A task that was never played from the beginning counts as
        hard."""
        newest = next((group for group in groups if not group.kind), None)
        return newest is None or newest.success <= self.hard

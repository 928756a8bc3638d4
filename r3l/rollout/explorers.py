"""Explorers: how the attempts of a group begin, given stored attempts at its task.

    history of the task ─► choose (buffer service, when the group is leased) ─► GroupRow.handed
    handed attempts ─► openings (actor) ─► one Opening for each base slot ─► attempts

An attempt may begin with a text after the system prompt (`context`), or with the first steps of
a stored attempt, which are played again and not trained on (`start`). The handed attempts are
written into the group's row, so that an actor that takes the group over begins in the same way. To
add an explorer, write a class and put it into EXPLORERS, or name it by path; a new setting is a
field of ExplorerConfig (r3l.settings.sampling).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from r3l.algorithms.recall import GroupContext, RandomSource, StoredAttempt
from r3l.records import Recalled
from r3l.rollout.prompts import Prompts
from r3l.settings import user_class
from r3l.settings.sampling import ExplorerConfig


@dataclass(frozen=True)
class Opening:
    """How an attempt begins. `context`: text after the system prompt, which stays in the attempt.
    `stored`: the attempt that is shown or continued; `start`: how many of its steps are played
    again first."""

    context: str = ""
    stored: Recalled | None = None
    start: int = 0


class Explorer:
    """A way to begin the attempts of a group; this one begins every attempt with its task."""

    def __init__(self, config: ExplorerConfig) -> None:
        self.config = config

    def choose(self, context: GroupContext, source: RandomSource) -> Sequence[StoredAttempt]:
        """Chooses the stored attempts for a new group; without any it begins plainly.
        `context.rewards` is empty."""
        return ()

    def openings(
        self, handed: Sequence[Recalled], slots: int, random: np.random.Generator, prompts: Prompts
    ) -> list[Opening]:
        """Returns the opening of each base slot of a group that was handed attempts. `random` is
        the same for every actor that plays the group."""
        return [Opening()] * slots


class InContext(Explorer):
    """In-context self-reflection of R³ (arXiv 2601.19620): from the second epoch on, `share` of the
    groups of a task whose stored rewards have a mean below `threshold` show one of its stored
    failures, drawn at random, and ask the policy to reflect on it first."""

    def choose(self, context: GroupContext, source: RandomSource) -> Sequence[StoredAttempt]:
        history = list(context.history) if context.epoch > 0 else []
        failures = [attempt for attempt in history if not attempt.success]
        random = source()
        if not failures or _mean(history) >= self.config.threshold:
            return ()
        if random.random() >= self.config.share:
            return ()
        return [failures[random.integers(len(failures))]]

    def openings(
        self, handed: Sequence[Recalled], slots: int, random: np.random.Generator, prompts: Prompts
    ) -> list[Opening]:
        shown = prompts.in_context(handed[0].trajectory)
        return [Opening(context=shown, stored=handed[0])] * slots


class Continued(Explorer):
    """Groups that begin with the first steps of a stored attempt, a cut drawn uniformly for the
    group; an attempt of one step has none."""

    def openings(
        self, handed: Sequence[Recalled], slots: int, random: np.random.Generator, prompts: Prompts
    ) -> list[Opening]:
        steps = handed[0].trajectory.num_steps
        if steps < 2:
            return [Opening()] * slots
        return [Opening(stored=handed[0], start=int(random.integers(1, steps)))] * slots


class Prefix(Continued):
    """Cuts of a stored success as tasks (PrefixRL, arXiv 2601.18795; POPE, arXiv 2601.18779): of
    the groups of a task whose stored rewards have a mean below `threshold` `share` begin inside a
    stored success, the others with the task itself."""

    def choose(self, context: GroupContext, source: RandomSource) -> Sequence[StoredAttempt]:
        history, random = list(context.history), source()
        successes = [attempt for attempt in history if attempt.success]
        if not successes or _mean(history) >= self.config.threshold:
            return ()
        if random.random() >= self.config.share:
            return ()
        return [successes[random.integers(len(successes))]]


class Partial(Continued):
    """Starts from stored partial histories (ExIt, arXiv 2509.04575): `share` of the groups begin
    inside a stored attempt. Its group is drawn in proportion to the variance of its rewards, the
    attempt in it at random."""

    def choose(self, context: GroupContext, source: RandomSource) -> Sequence[StoredAttempt]:
        groups = [
            list(own) for _, own in groupby(context.history, lambda attempt: attempt.group_id)
        ]
        spread = np.array([np.var([attempt.reward for attempt in own]) for own in groups])
        random = source()
        if not spread.sum() or random.random() >= self.config.share:
            return ()
        own = groups[random.choice(len(groups), p=spread / spread.sum())]
        return [own[random.integers(len(own))]]


EXPLORERS: dict[str, type[Explorer]] = {
    "plain": Explorer,
    "in_context": InContext,
    "prefix": Prefix,
    "partial": Partial,
}


def make(config: ExplorerConfig) -> Explorer:
    """Makes the explorer of this name, or the user's own, `path/to/file.py:Class`. Raises UserError
    for an unknown one."""
    return user_class.find("explorer", config.name, EXPLORERS, Explorer)(config)


def _mean(history: Sequence[StoredAttempt]) -> float:
    """Returns the mean reward of stored attempts; a success counts as 1."""
    return float(np.mean([min(attempt.reward, 1.0) for attempt in history]))

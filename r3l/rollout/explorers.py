"""Explorers: how a group's attempts begin, depending on stored attempts at the same task.

    history of the task ─► choose (buffer service, when the group is leased) ─► GroupRow.handed
    handed attempts ─► openings (actor) ─► one Opening for each base slot ─► attempts

An attempt may begin with a text after the system prompt (`context`), or with the first steps of a
stored attempt, which are replayed and not trained on (`start`). The handed attempts are written
into the group's row, so that another actor that takes over the group begins in the same way. To add
an explorer, write a class and add it to EXPLORERS, or name it by path. A new setting is a field of
ExplorerConfig (r3l.settings.sampling).
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
    `stored`: the attempt that is shown or continued; `start`: how many of its steps are replayed
    first."""

    context: str = ""
    stored: Recalled | None = None
    start: int = 0


class Explorer:
    """Decides how a group's attempts begin. This base class begins every attempt with the plain
    task."""

    def __init__(self, config: ExplorerConfig) -> None:
        self.config = config

    def choose(self, context: GroupContext, source: RandomSource) -> Sequence[StoredAttempt]:
        """Chooses the stored attempts for a new group. If it chooses none, attempts begin with the
        plain task. `context.rewards` is empty."""
        return ()

    def openings(
        self, handed: Sequence[Recalled], slots: int, random: np.random.Generator, prompts: Prompts
    ) -> list[Opening]:
        """Returns an opening for each base slot of a group, from the attempts `handed` to it.
        `random` is the same for every actor that plays the group."""
        return [Opening()] * slots


class InContext(Explorer):
    """In-context self-reflection of R³ (arXiv 2601.19620), from the second epoch on. It applies to
    tasks whose mean stored reward is below `threshold`. A `share` of their groups show a random
    stored failure and first ask the policy to reflect on it."""

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
    """Begins a group with the first steps of a stored attempt, up to a cut drawn uniformly for the
    group. An attempt of a single step cannot be cut."""

    def openings(
        self, handed: Sequence[Recalled], slots: int, random: np.random.Generator, prompts: Prompts
    ) -> list[Opening]:
        steps = handed[0].trajectory.num_steps
        if steps < 2:
            return [Opening()] * slots
        return [Opening(stored=handed[0], start=int(random.integers(1, steps)))] * slots


class Prefix(Continued):
    """Begins groups inside a stored success (PrefixRL, arXiv 2601.18795; POPE, arXiv 2601.18779).
    It applies to tasks whose mean stored reward is below `threshold`: a `share` of their groups
    begin inside a stored success, the other groups with the plain task."""

    def choose(self, context: GroupContext, source: RandomSource) -> Sequence[StoredAttempt]:
        history, random = list(context.history), source()
        successes = [attempt for attempt in history if attempt.success]
        if not successes or _mean(history) >= self.config.threshold:
            return ()
        if random.random() >= self.config.share:
            return ()
        return [successes[random.integers(len(successes))]]


class Partial(Continued):
    """Begins a `share` of the groups inside a stored attempt (the partial histories of ExIt, arXiv
    2509.04575). The stored group is drawn in proportion to its reward variance, its attempt at
    random."""

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
    """Makes the explorer of this name, or the user's own (`path/to/file.py:Class`). Raises
    UserError if it is unknown."""
    return user_class.find("explorer", config.name, EXPLORERS, Explorer)(config)


def _mean(history: Sequence[StoredAttempt]) -> float:
    """Returns the mean reward of stored base attempts; a success counts as 1."""
    bases = [min(attempt.reward, 1.0) for attempt in history if attempt.role == "base"]
    return float(np.mean(bases or [0.0]))

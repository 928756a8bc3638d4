"""Keeps the groups of a loop in one process: what the buffer service is to a run.

facts(task) ─► Algorithm.plan ─► explore ─► keep(group) ─► batch([group, …]) ─► rows

fill(algorithm, tasks, explore, count) ─► groups, until `count` are admitted ─► their batch
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from r3l.algorithms import guidance_gain
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.facts import GroupFacts, LeaseFacts, StoredAttempt, attempts_of
from r3l.algorithms.guidance_gain import GroupGain
from r3l.records import Group, GroupPlan, Recalled, Task
from r3l.rollout.chat import ChatFormat

TASK_GROUPS = 64
"""How many groups of a task are kept."""
ROUNDS = 20
"""How often groups are replaced for one batch at most."""


class Filled(NamedTuple):
    """A batch, and the groups that were explored for it but are not in it."""

    batch: Batch
    refused: list[Group]


class Memory:
    """The stored groups of one process, by task. `version`: the learner's; raise it after a step.
    The same `seed` gives the same decisions."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.version, self.decisions = seed, 0, 0
        self.groups: defaultdict[str, list[Group]] = defaultdict(list)
        self.gains: list[GroupGain] = []

    def facts(self, task_id: str, epoch: int | None = None) -> LeaseFacts:
        """Returns the facts of a group that is about to be explored. `epoch`: by default, the
        number of stored groups of the task."""
        return LeaseFacts(
            task_id,
            len(self.groups[task_id]) if epoch is None else epoch,
            self.version,
            self.history(task_id),
            self.gains,
            self._random(),
        )

    def history(self, task_id: str, without: str = "") -> Iterator[StoredAttempt]:
        """Yields the stored attempts at a task, newest group first."""
        for group in reversed(self.groups[task_id]):
            if group.group_id != without:
                yield from attempts_of(group)

    def handed(self, plan: GroupPlan, into: str = "") -> list[Recalled]:
        """Returns the stored attempts of a plan that are still kept."""
        kept = {group.group_id: group for groups in self.groups.values() for group in groups}
        return [
            Recalled(into, key.group_id, attempt)
            for key in plan.handed
            if key.group_id in kept
            for attempt in kept[key.group_id].trajectories
            if attempt.slot == key.slot
        ]

    def keep(self, group: Group) -> None:
        """Stores a group. The oldest groups of its task are forgotten."""
        groups = self.groups[group.task.task_id]
        groups.append(group)
        del groups[:-TASK_GROUPS]
        rewards = ((t.slot, t.of, t.reward) for t in group.trajectories)
        gain = guidance_gain.of_group(rewards, group.plan.kind)
        if gain.slots:
            self.gains = [gain, *self.gains][: guidance_gain.GROUPS]

    def batch(
        self,
        algorithm: Algorithm,
        groups: Sequence[Group],
        chat: Callable[[], ChatFormat] | None = None,
    ) -> Batch:
        """Makes a batch of groups, with the stored attempts that the algorithm recalls. `chat`:
        makes the chat format, which `Batch.advised` needs."""
        recalled = list[Recalled]()
        for group in groups:
            earlier = self.history(group.task.task_id, without=group.group_id)
            facts = GroupFacts.of_group(group, self.version)
            for attempt in algorithm.recalls(facts, earlier, self._random()):
                recalled += self._read(group.group_id, attempt)
        return Batch(groups, recalled=recalled, version=self.version, chat=chat)

    async def fill(
        self,
        algorithm: Algorithm,
        tasks: Iterator[Task],
        explore: Callable[[Task], Awaitable[Group]],
        count: int,
        *,
        rounds: int = ROUNDS,
    ) -> Filled:
        """Explores groups of the next tasks, several at the same time, until `algorithm` has
        admitted `count` of them. Replaces refused groups, and groups without an attempt. The batch
        has fewer groups if the tasks run out, or if `count` is not reached after `rounds`
        rounds."""
        admitted, refused = list[Group](), list[Group]()
        for _ in range(rounds):
            some = [*islice(tasks, count - len(admitted))]
            for group in await asyncio.gather(*map(explore, some)):
                (admitted if self._admits(algorithm, group) else refused).append(group)
            if len(admitted) == count or not some:
                break
        return Filled(self.batch(algorithm, admitted), refused)

    def _admits(self, algorithm: Algorithm, group: Group) -> bool:
        facts = GroupFacts.of_group(group, self.version)
        return bool(group.trajectories) and not algorithm.admits(facts)

    def _read(self, into: str, wanted: StoredAttempt) -> Iterable[Recalled]:
        for groups in self.groups.values():
            for group in groups:
                if group.group_id == wanted.group_id:
                    found = [t for t in group.trajectories if t.slot == wanted.slot]
                    return [Recalled(into, group.group_id, attempt) for attempt in found]
        return []

    def _random(self) -> Callable[[], np.random.Generator]:
        self.decisions += 1
        seeds = (self.seed, self.decisions)
        return lambda: np.random.default_rng(seeds)

"""In-context self-reflection: groups whose attempts begin with a stored failure in their context.

    lease ─► planned: a stored failure of the task ─► explore: shown to every attempt of the group
                                                           │
    rows in the context that was read ◄─ in_context ◄──────┘ stored: the plain sequence, and `shown`

Source: R³, arXiv 2601.19620. Its Algorithm 1 adds a reflecting group to the plain one of a task. A
lease is for one group, so a task that reflects gets either kind with the same probability.
"""

from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
from msgspec.structs import replace as changed

from r3l.algorithms.batch import Batch
from r3l.algorithms.facts import LeaseFacts
from r3l.records import SUCCESS, AttemptKey, Group, GroupPlan, SlotResult, done
from r3l.rollout.exploration import Exploration

AnyBatch = TypeVar("AnyBatch", bound=Batch)

REFLECTING = "reflecting"
"""The kind of a reflecting group (GroupPlan)."""
SHARE = 0.5
"""The share of reflecting groups among those of a task that reflects."""


def planned(lease: LeaseFacts, slots: int, below: float) -> GroupPlan | None:
    """Plans a reflecting group of `slots` slots, or returns None for a plain one.

    A task reflects from the second epoch on, if the mean stored reward of its first attempts is
    less than `below`; a reward above 1 counts as 1. The failure is drawn among all stored ones.
    """
    random = lease.random()
    if lease.epoch == 0 or random.random() >= SHARE:
        return None
    stored = list(lease.history)
    failures = [attempt for attempt in stored if not attempt.success]
    first = [min(attempt.reward, SUCCESS) for attempt in stored if attempt.of < 0]
    if not failures or np.mean(first or [0.0]) >= below:
        return None
    shown = failures[int(random.integers(len(failures)))]
    return GroupPlan(slots, REFLECTING, (AttemptKey(shown.group_id, shown.slot),))


async def explore(x: Exploration) -> None:
    """Fills every slot of a reflecting group. If the failure is no longer stored, the open slots
    fail with the cause `shown_gone`."""
    if not x.handed:
        await x.each(range(x.plan.slots), lambda slot: x.fail(slot, "shown_gone"))
        return
    context = (await x.prompts()).in_context(x.handed[0].trajectory)
    await x.each(range(x.plan.slots), partial(x.play, context=context))


def in_context(batch: AnyBatch) -> AnyBatch:
    """Returns the batch with the attempts of its reflecting groups as the policy read them, so that
    their rows have the failure in their context. Recalled attempts stay as they are stored."""
    if not any(group.plan.kind == REFLECTING for group in batch.groups):
        return batch
    return replace(batch, groups=[_as_read(group) for group in batch.groups])


def _as_read(group: Group) -> Group:
    if group.plan.kind != REFLECTING:
        return group
    return changed(group, results=tuple(_result_as_read(result) for result in group.results))


def _result_as_read(result: SlotResult) -> SlotResult:
    return result if result.trajectory is None else done(result.trajectory.as_read())

"""In-context self-reflection: groups whose attempts begin with a stored failure in their context.

    lease ─► planned: a stored failure of the task ─► explore: shown to every attempt of the group
                                                           │
    rows in the context that was read ◄─ Batch.as_read ◄───┘ stored: the plain sequence, and `shown`

Source: R³, arXiv 2601.19620. Its Algorithm 1 adds a reflecting group to the plain one of a task. A
lease is for one group, so a task that reflects gets either kind with the same probability.
"""

from functools import partial

import numpy as np

from r3l.algorithms.facts import LeaseFacts
from r3l.records import SUCCESS, AttemptKey, Group, GroupPlan
from r3l.rollout.exploration import Exploration

REFLECTING = "reflecting"
"""The kind of a reflecting group (GroupPlan)."""
SHARE = 0.5
"""The share of reflecting groups among the groups of a hard task."""


def plan_reflecting(lease: LeaseFacts, slots: int, below: float) -> GroupPlan | None:
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


def is_reflecting(group: Group) -> bool:
    """Whether a group begins with a stored failure in its context."""
    return group.plan.kind == REFLECTING

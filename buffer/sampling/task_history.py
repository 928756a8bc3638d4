"""Reads a task's stored attempts for the recall rules (r3l.algorithms.recall)."""

from collections.abc import Iterator
from itertools import islice

from buffer.storage.transaction import Txn
from r3l import codec
from r3l.algorithms.recall import StoredAttempt
from r3l.records import Group, Recalled, Role

GROUPS = 64
"""How many usable groups of a task are read at most. Keeps draws fast."""
USABLE = ("", "stale", "no_contrast")
"""Causes of groups whose attempts are usable. "": the group has not expired."""


def attempts(
    txn: Txn, task_id: str, *, excluded: str = "", waiting: bool = False
) -> Iterator[StoredAttempt]:
    """Yields the attempts of a task's closed groups, newest group first. `waiting` (for a store
    without actors): also yields the attempts of complete and drawn groups."""
    usable = (
        row
        for row in txn.finished(task_id)
        if row.group_id != excluded
        and (row.closed or waiting)
        and row.cause in USABLE
        and txn.record_is_sound(row)
    )
    for row in islice(usable, GROUPS):
        for role, slot, reward in sorted(row.attempts):
            yield StoredAttempt(row.group_id, role, slot, reward, row.oldest_version)


def read(txn: Txn, into: str, group_id: str, role: Role, slot: int) -> Recalled | None:
    """Returns a recalled attempt with its tokens, or None if its group is evicted or damaged."""
    row = txn.row(group_id)
    if row is None or not txn.record_is_sound(row):
        return None
    group = codec.decode(Group, txn.record(group_id))
    for attempt in group.trajectories:
        if (attempt.role, attempt.slot) == (role, slot):
            return Recalled(into, group_id, attempt)
    return None

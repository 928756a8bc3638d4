"""The history of a task, as rules of recall see it (r3l.algorithms.recall)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from buffer.storage.rows import GroupRow
from buffer.storage.transaction import Txn
from r3l import codec
from r3l.algorithms.recall import StoredAttempt
from r3l.records import Group, Recalled, Role, SlotStatus

GROUPS = 64
"""The newest groups of a task that are looked at, so that a draw does not take longer and longer
in a long run."""
USABLE = ("", "stale", "no_contrast")
"""Causes of closed groups whose attempts are sound; a group that was discarded or damaged is not
recalled."""


def attempts(
    txn: Txn, task_id: str, *, but: str = "", waiting: bool = False
) -> Iterator[StoredAttempt]:
    """The attempts of a training task's closed groups, the newest group first, without those of the
    group `but`. `waiting`: also of groups that are complete or drawn, if no actor adds groups."""
    looked_at = 0
    for row in txn.finished(task_id):
        ended = row.group_id != but and (row.closed or waiting)
        if not ended or row.cause not in USABLE or not txn.record_is_sound(row):
            continue
        for result in _results(txn, row):
            if result.trajectory is not None:
                reward = result.trajectory.reward
                yield StoredAttempt(
                    row.group_id, result.role, result.slot, reward, row.oldest_version
                )
        looked_at += 1
        if looked_at == GROUPS:
            return


def read(txn: Txn, into: str, group_id: str, role: Role, slot: int) -> Recalled | None:
    """A recalled attempt with its tokens, without a context that it was shown; None if its group
    was evicted or damaged since."""
    row = txn.row(group_id)
    if row is None or not txn.record_is_sound(row):
        return None
    group = codec.decode(Group, txn.record(group_id))
    for attempt in group.trajectories:
        if (attempt.role, attempt.slot) == (role, slot):
            return Recalled(into, group_id, attempt.without_context())
    return None


class _Attempt(msgspec.Struct):
    reward: float


class _Result(msgspec.Struct):
    """What is read of a result: not its tokens, which are most of it."""

    role: Role
    slot: int
    status: SlotStatus
    trajectory: _Attempt | None = None


def _results(txn: Txn, row: GroupRow) -> list[_Result]:
    bodies = codec.group_bodies(txn.record(row.group_id))
    return [msgspec.msgpack.decode(body, type=_Result) for body in bodies]

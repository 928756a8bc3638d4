"""Reads a task's stored attempts for the algorithm (r3l.algorithms.facts)."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice

from buffer.storage.stored_rows import GroupRow
from buffer.storage.transaction import Txn
from r3l import codec
from r3l.algorithms.facts import StoredAttempt
from r3l.records import Group, Recalled

GROUPS = 64
"""How many usable groups of a task are read at most. Keeps draws fast."""


class StoredHistory:
    """The stored attempts at a task, newest group first. `read` is called at the first use."""

    def __init__(self, read: Callable[[], Sequence[StoredAttempt]]) -> None:
        self._read = read

    @cached_property
    def _attempts(self) -> Sequence[StoredAttempt]:
        return self._read()

    def __iter__(self) -> Iterator[StoredAttempt]:
        return iter(self._attempts)


def usable(row: GroupRow) -> bool:
    """Whether the attempts of a finished group may be used again. A group that was too old or that
    the algorithm refused is allowed."""
    return row.cause in ("", "stale") or row.replaced


def attempts(
    txn: Txn, task_id: str, *, excluded: str = "", waiting: bool = False, imported: bool = False
) -> Iterator[StoredAttempt]:
    """Yields the attempts of a task's closed groups, newest group first. `waiting` (for a store
    without actors): also yields the attempts of complete and drawn groups. `imported`: also yields
    the attempts of inserted groups (buffer.recall_imported)."""
    found = (
        row
        for row in txn.finished(task_id)
        if row.group_id != excluded and _is_history(txn, row, waiting, imported)
    )
    for row in islice(found, GROUPS):
        for slot, of, reward in row.attempts:
            yield StoredAttempt(row.group_id, slot, reward, row.oldest_version, of, row.plan.kind)


def holds(
    txn: Txn,
    task_id: str,
    group_id: str,
    slot: int,
    *,
    excluded: str = "",
    waiting: bool = False,
    imported: bool = False,
) -> bool:
    """Whether `attempts` would yield an attempt if it had no limit."""
    row = txn.row(group_id) if group_id != excluded else None
    if row is None or (row.task_id, row.purpose) != (task_id, "train") or slot not in row.played:
        return False
    return row.all_resolved and _is_history(txn, row, waiting, imported)


def read(txn: Txn, into: str, group_id: str, slot: int) -> Recalled | None:
    """Returns a stored attempt with its tokens, or None if its group is evicted or damaged."""
    row = txn.row(group_id)
    if row is None or not txn.record_is_sound(row):
        return None
    group = codec.decode(Group, txn.record(group_id))  # an archived one is still in memory
    for attempt in group.trajectories:
        if attempt.slot == slot:
            return Recalled(into, group_id, attempt)
    return None


def _is_history(txn: Txn, row: GroupRow, waiting: bool, imported: bool) -> bool:
    belongs = imported or not row.source  # inserted groups are replayed, and recalled if wanted
    if not belongs or not (row.closed or waiting) or not usable(row):
        return False
    return row.archived is not None or txn.record_is_sound(row)  # an archived one is read if chosen

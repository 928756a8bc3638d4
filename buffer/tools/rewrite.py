"""Copies a store and replaces results of its groups. Nothing else changes.

store ─► compacted copy ─► each changed group: record or parts, row, counts ─► new folder
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buffer.storage import counts, folder_lock, result_checksums
from buffer.storage.rows import GroupRow
from buffer.storage.store import Store
from buffer.storage.transaction import Txn
from r3l import codec
from r3l.records import Group, Role


@contextmanager
def rewritten(store: Store, folder: Path) -> Iterator[Store]:
    """Yield a writable copy of a store. The copy is moved to `folder` when the block ends, or
    removed after an error. Raises UserError if `folder` is in use."""
    with folder_lock.new_folder(folder, "store") as building:
        store.copy(building)
        with Store(building, map_gib=None) as copy:
            yield copy


def put_group(txn: Txn, group: Group) -> None:
    """Replace the results of a group, slot by slot. The slots stay resolved."""
    before = txn.existing_row(group.group_id)
    parts = {(r.role, r.slot): codec.encode(r) for r in group.results}
    after = _row(before, group, parts)
    known = txn.counts()
    for name, change in counts.added(before, after).items():
        txn.put_count(name, known[name] + change)
    txn.put_row(after)
    if not after.unfinished:
        txn.put_record(after, codec.encode(group))
        return
    for (role, slot), data in parts.items():
        txn.put_part(after.group_id, role, slot, data)


def _row(row: GroupRow, group: Group, parts: dict[tuple[Role, int], bytes]) -> GroupRow:
    """Returns a group's row with new results."""
    results = {(r.role, r.slot): r for r in group.results}
    ordered = [results[slot] for slot in row.resolved]
    done = [result for result in ordered if result.trajectory is not None]
    return row.with_changes(
        checksums=tuple(result_checksums.checksum(parts[slot]) for slot in row.resolved),
        played=tuple((result.role, result.slot) for result in done),
        rewards=tuple(r.trajectory.reward for r in done if r.trajectory is not None),
        failures=tuple(f"{r.role}/{r.cause}" for r in ordered if r.status == "failed"),
        oldest_version=group.oldest_version,
        nbytes=sum(map(len, parts.values())),
    )

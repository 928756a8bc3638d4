"""Copies a store and replaces results of its groups. Nothing else changes.

store ─► compacted copy ─► each changed group: record or parts, row, counts ─► new folder
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buffer.groups.completion import with_resolved
from buffer.groups.slot_outcome import decode_outcome
from buffer.storage import counts, folder_lock
from buffer.storage.store import Store
from buffer.storage.transaction import Txn
from r3l import codec
from r3l.records import Group


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
    after = with_resolved(
        before.with_changes(
            resolved=(), checksums=(), failures=(), played=(), rewards=(),
            oldest_version=-1, nbytes=0,
        ),
        [decode_outcome(parts[slot]) for slot in before.resolved],
    )  # fmt: skip
    known = txn.counts()
    for name, change in counts.added(before, after).items():
        txn.put_count(name, known[name] + change)
    txn.put_row(after)
    if not after.unfinished:
        txn.put_record(after, codec.encode(group))
        return
    for (role, slot), data in parts.items():
        txn.put_part(after.group_id, role, slot, data)

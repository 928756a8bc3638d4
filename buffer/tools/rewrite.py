"""Copies a store and replaces results of its groups. Nothing else changes.

store ─► compacted copy ─► each changed group: record or parts, row, counts ─► new folder
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buffer.groups.completion import with_received
from buffer.storage import counts
from buffer.storage.result_checksums import checksum
from buffer.storage.store import Store
from buffer.storage.stored_rows import GroupRow
from buffer.storage.transaction import Encoded, Parts, Txn, parts_of
from buffer.wire.received import Received
from r3l import codec
from r3l.files.new_folder import new_folder
from r3l.records import Group, SlotResult


@contextmanager
def rewrite_store(store: Store, folder: Path) -> Iterator[Store]:
    """Yields a writable copy of a store. When the block ends, moves the copy to `folder`. After an
    error, removes it. Raises UserError if `folder` is not empty or cannot be written."""
    with new_folder(folder, "store") as building:
        store.copy(building)
        with Store(building, map_gib=None) as copy:
            yield copy


def put_group(txn: Txn, group: Group) -> None:
    """Replaces the results of a group, slot by slot. Resolved slots and reflections stay. Raises
    RecordError if the group becomes too large."""
    before = txn.existing_row(group.group_id)
    parts = parts_of(group).results
    after = _with_results(before, group, parts)
    known = txn.counts()
    for name, change in counts.added(before, after).items():
        txn.put_count(name, known[name] + change)
    txn.put_row(after)
    if after.unfinished:
        txn.put_parts(after.group_id, Parts(parts))
    else:
        txn.put_record(after, group)


def _with_results(before: GroupRow, group: Group, parts: dict[int, Encoded]) -> GroupRow:
    """Returns the row of a group with other results, in the old order."""
    results = {result.slot: result for result in group.results}
    received = [
        Received[SlotResult](results[slot], -1, checksum(parts[slot]), parts[slot])
        for slot in before.resolved_slots
    ]
    emptied = before.with_changes(
        resolved_slots=(),
        of=(),
        checksums=(),
        failures=(),
        played=(),
        rewards=(),
        oldest_version=-1,
        archived=None,
    )
    old = sum(len(codec.encode(each)) for each in group.reflections)
    after = with_received(emptied.with_changes(nbytes=0), received)
    return after.with_changes(nbytes=after.nbytes + old)

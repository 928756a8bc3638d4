"""The CRC-32 of each result and each reflection, stored in the group's row. A CRC-32 tells a
repeated result from a different one, and reveals damage."""

from collections.abc import Iterator
from zlib import crc32

from msgspec.structs import replace

from buffer.storage.stored_rows import GroupRow
from buffer.storage.transaction import Txn, read_group
from r3l import codec
from r3l.errors import RecordError
from r3l.records import Group, Record, SlotResult


def checksum(encoded: bytes | memoryview, kind: type[Record] = SlotResult) -> int:
    """Returns the CRC-32 of the bytes that a group record holds for a result or a reflection."""
    return crc32(codec.body(kind, encoded))


def by_slot(row: GroupRow) -> dict[int, int]:
    return dict(zip(row.resolved_slots, row.checksums, strict=True))


def read(txn: Txn, row: GroupRow) -> Group:
    """Reads a group in its current state. Raises RecordError if the group is damaged."""
    data = txn.group_bytes(row)
    try:
        group = read_group(data, row)
    except RecordError as error:
        raise type(error)(f"{row.group_id}: {error}", **error.facts) from None
    for problem in damage(txn, row, data, group):
        raise RecordError(f"{row.group_id}: {problem}", group_id=row.group_id)
    return group


def damage(txn: Txn, row: GroupRow, data: bytes, group: Group) -> Iterator[str]:
    """Yields each difference between a group's record and its row. `data`: the encoded record."""
    if codec.encode(replace(group, results=(), reflections=())) != codec.encode(txn.head(row)):
        yield "task, plan or actor differ between its record and its row"
    resolved = dict(zip(row.resolved_slots, row.of, strict=True))
    if {result.slot: result.of for result in group.results} != resolved:
        yield "the resolved slots differ between its record and its row"
    named = dict(row.reflections)
    if {reflection.name for reflection in group.reflections} != named.keys():
        yield "the reflections differ between its record and its row"
    sums, bodies = by_slot(row), codec.group_bodies(data)
    for result, raw in zip(group.results, bodies.results, strict=True):
        if sums.get(result.slot) != crc32(raw):
            yield f"slot {result.slot} differs from the accepted result (checksum)"
    for reflection, raw in zip(group.reflections, bodies.reflections, strict=True):
        if named.get(reflection.name) != crc32(raw):
            yield f"reflection {reflection.name} differs from the accepted one (checksum)"

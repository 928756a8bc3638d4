"""The CRC-32 of each slot result, stored in the group's row. A CRC-32 tells a repeated result from
a different one, and reveals damage."""

from collections.abc import Iterator
from zlib import crc32

from msgspec.structs import replace

from buffer.storage.rows import GroupRow
from buffer.storage.transaction import Txn, read_group
from r3l import codec
from r3l.errors import RecordError
from r3l.records import Group, Role, SlotResult


def checksum(result: bytes | memoryview) -> int:
    """Returns the CRC-32 of the bytes that a group record holds for a slot result."""
    return crc32(codec.body(SlotResult, result))


def by_slot(row: GroupRow) -> dict[tuple[Role, int], int]:
    return dict(zip(row.resolved, row.checksums, strict=True))


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
    if codec.encode(replace(group, results=())) != codec.encode(txn.head(row)):
        yield "task, plan or actor differ between its record and its row"
    if {(result.role, result.slot) for result in group.results} != set(row.resolved):
        yield "the resolved slots differ between its record and its row"
    sums = by_slot(row)
    for result, raw in zip(group.results, codec.group_bodies(data), strict=True):
        if sums.get((result.role, result.slot)) != crc32(raw):
            yield f"{result.role} slot {result.slot} differs from the accepted result (checksum)"

"""Checksums of stored results: a CRC-32 of every slot result, kept in its group's row.

It is computed when a result is accepted, and compared when one is put into the same slot again, by
`verify`, and by whoever reads a store without its service (replay, show, export). The service
sends groups as they are: what it reads for a draw or a query is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from msgspec.structs import replace

from buffer.storage.rows import GroupRow
from buffer.storage.transaction import Txn, read_group
from r3l import codec
from r3l.errors import RecordError
from r3l.records import Group, Role, SlotResult


def checksum(result: bytes | memoryview) -> int:
    """CRC-32 of an encoded slot result as it will lie in its group's record."""
    return crc32(codec.body(SlotResult, result))


def by_slot(row: GroupRow) -> dict[tuple[Role, int], int]:
    """The checksum of every resolved slot."""
    return dict(zip(row.resolved, row.checksums, strict=True))


def read(txn: Txn, row: GroupRow) -> Group:
    """A group as it is now; raises RecordError, with the group and slot, if it was damaged."""
    data = txn.group_bytes(row)
    try:
        group = read_group(data, row)
    except RecordError as error:
        raise type(error)(f"{row.group_id}: {error}", **error.facts) from None
    for problem in damage(txn, row, data, group):
        raise RecordError(f"{row.group_id}: {problem}", group_id=row.group_id)
    return group


def damage(txn: Txn, row: GroupRow, data: bytes, group: Group) -> Iterator[str]:
    """What a group, decoded from `data`, has that was never put there."""
    if codec.encode(replace(group, results=())) != codec.encode(txn.head(row)):
        yield "its record is not of the task, plan and actor that its state names"
    if {(result.role, result.slot) for result in group.results} != set(row.resolved):
        yield "its results are not those its state names"
    sums = by_slot(row)
    for result, raw in zip(group.results, codec.group_bodies(data), strict=True):
        if sums.get((result.role, result.slot)) != crc32(raw):
            yield f"{result.role} slot {result.slot} is not what was put (its checksum differs)"

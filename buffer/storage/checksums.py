"""Is a group still what was put? A CRC-32 of every slot result, kept in the group's GroupRow.

It is computed when a result is accepted, and compared when one is put into the same slot again, by
`verify`, and by whoever reads a store without its service (replay, show, export). The service
sends groups as they are: what it reads for a draw or a query is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from zlib import crc32

import msgspec

from buffer.storage.rows import GroupRow
from buffer.storage.transaction import Txn, read_group
from r3l import codec
from r3l.errors import RecordError
from r3l.records import Group, Role, SlotResult

UNKNOWN = -1  # checksum of a result that was accepted before there were any


def checksum(result: bytes | memoryview) -> int:
    """CRC-32 of an encoded slot result as it will lie in its group's record."""
    return crc32(codec.result_body(result))


def known(row: GroupRow) -> dict[tuple[Role, int], int]:
    """The checksum of every resolved slot that has one."""
    pairs = zip(row.resolved, row.checksums, strict=False)  # older rows have fewer
    return {slot: value for slot, value in pairs if value != UNKNOWN}


def again(row: GroupRow, results: Mapping[tuple[Role, int], bytes]) -> tuple[int, ...]:
    """The checksums of an row whose results were encoded anew, as these."""
    sums = {slot: checksum(results[slot]) for slot in known(row)}
    return tuple([sums.get(slot, UNKNOWN) for slot in row.resolved[: len(row.checksums)]])


def same(txn: Txn, row: GroupRow, result: bytes | memoryview) -> bool:
    """Whether a slot holds this result after all, as an older schema encoded it."""
    sent = codec.decode(SlotResult, result)
    results = read_group(txn.group_bytes(row), row).results
    kept = [r for r in results if (r.role, r.slot) == (sent.role, sent.slot)]
    return [codec.encode(r) for r in kept] == [codec.encode(sent)]


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
    sums = known(row)
    for result, raw in zip(group.results, _results(data), strict=True):
        expected = sums.get((result.role, result.slot), UNKNOWN)
        if expected not in (UNKNOWN, crc32(raw)):
            yield f"{result.role} slot {result.slot} is not what was put (its checksum differs)"


def _results(data: bytes) -> list[msgspec.Raw]:
    """The encoded slot results in a group's record."""
    record = msgspec.msgpack.decode(data, type=tuple[int, str, dict[str, msgspec.Raw]])
    return msgspec.msgpack.decode(record[2].get("results", b"\x90"), type=list[msgspec.Raw])

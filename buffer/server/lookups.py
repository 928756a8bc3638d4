"""Queries: read-only requests. Each part of an answer comes from one consistent view of the store.

A part ends after PART_BYTES, or after ROWS_LIMIT rows were looked at, so that no query keeps other
requests waiting, however few groups match and however large the store is.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from buffer.sampling import task_history
from buffer.storage.stored_rows import DrawRow, GroupRow, Status
from buffer.storage.transaction import Txn
from buffer.wire import operations
from buffer.wire.operations import Groups, Ids, Records
from buffer.wire.parts import PART_BYTES, frames_of, take
from buffer.wire.sockets import Frame
from r3l import codec
from r3l.errors import LimitExceeded, NotFound, RecordError

ROWS_LIMIT = 2000  # rows that one part of a query looks at

Part = tuple[Groups, list[Frame]]


def query(txn: Txn, args: operations.QueryGroups) -> Part:
    """Returns the next of the newest `limit` groups with this purpose, tag and state, newest
    first."""
    _check_count(args.limit)
    if len(args.before) > operations.NAME_LIMIT:
        raise RecordError(f"before {args.before!r:.80}: is not a group's id", field="before")
    found, records, size, before = list[GroupRow](), list[bytes](), 0, ""
    names = txn.candidates(args.purpose, args.tag, args.state, args.before)
    for name in islice(names, ROWS_LIMIT):
        before, row = name, txn.existing_row(name)
        if not row.listed_under(args.purpose, args.tag, args.state):
            continue
        found.append(row)
        records.append(txn.group_bytes(row))
        size += len(records[-1])
        if len(found) == args.limit or size >= PART_BYTES:
            break
    ended = len(found) == args.limit or next(names, None) is None
    return _part(found, records, "" if ended else before)


def ledger(txn: Txn, args: operations.GetLedger) -> Ids:
    return Ids(txn.existing_step(args.step).groups)


def groups(txn: Txn, args: operations.GetGroups) -> Part:
    """Returns the first of the groups with these ids, in the order of the request. The client asks
    for the others."""
    _check_count(len(args.group_ids), least=0)
    records = take(txn.group_bytes(txn.existing_row(name)) for name in args.group_ids)
    rows = [txn.existing_row(name) for name in args.group_ids[: len(records)]]
    return _part(rows, records, "")


def drawn(txn: Txn, draw: DrawRow, at: int = 0) -> tuple[Records, list[Frame]]:
    """Returns a part of a draw's records, from record `at` on."""
    records = take(drawn_records(txn, draw, at))
    counts, frames = frames_of(records)
    return Records(counts, len(draw.groups) + len(draw.recalled) - at - len(records)), frames


def get_drawn(txn: Txn, args: operations.GetDrawn) -> tuple[Records, list[Frame]]:
    """Returns the part of a draw's records that begins with record `args.at`."""
    draw = txn.draw(args.draw_id)
    if draw is None:
        raise NotFound(f"there is no draw {args.draw_id}")
    return drawn(txn, draw, min(args.at, len(draw.groups) + len(draw.recalled)))


def drawn_records(txn: Txn, draw: DrawRow, at: int = 0) -> Iterator[bytes]:
    """Yields the records of a draw from number `at` on: the groups, then the recalled attempts. A
    recalled attempt that no longer exists gives an empty record."""
    for group_id in draw.groups[at:]:
        yield txn.record(group_id)
    for each in draw.recalled[max(0, at - len(draw.groups)) :]:
        found = task_history.read(txn, each.into, each.group_id, each.slot)
        yield b"" if found is None else codec.encode(found)


def status(row: GroupRow) -> Status:
    return Status(row.state, row.cause, row.times)


def _part(rows: Iterable[GroupRow], records: Iterable[bytes], before: str) -> Part:
    counts, frames = frames_of(records)
    return Groups(tuple(map(status, rows)), counts, before), frames


def _check_count(count: int, least: int = 1) -> None:
    if not least <= count <= operations.GROUPS_LIMIT:
        raise LimitExceeded(
            f"{count} groups requested: must be {least} to {operations.GROUPS_LIMIT}"
        )

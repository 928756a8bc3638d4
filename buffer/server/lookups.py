"""Queries: read-only requests. Each is answered from one consistent view of the store."""

from collections.abc import Iterable
from itertools import chain, islice

from buffer.sampling import task_history
from buffer.storage.stored_rows import DrawRow, GroupRow
from buffer.storage.transaction import Txn
from buffer.wire import operations
from buffer.wire.operations import Ids
from r3l import codec
from r3l.errors import LimitExceeded

REPLY_LIMIT = 512 << 20  # bytes of the records in one reply


def query(txn: Txn, args: operations.QueryGroups) -> list[GroupRow]:
    """Returns the newest `limit` groups with this purpose, tag and state, newest first."""
    _check_count(args.limit)
    return list(islice(txn.listed(args.purpose, args.tag, args.state), args.limit))


def ledger(txn: Txn, args: operations.GetLedger) -> Ids:
    return Ids(txn.existing_step(args.step).groups)


def groups(txn: Txn, args: operations.GetGroups) -> list[GroupRow]:
    """Returns the groups with these ids, in the order of the request."""
    _check_count(len(args.group_ids), least=0)
    return [txn.existing_row(group_id) for group_id in args.group_ids]


def drawn(txn: Txn, draw: DrawRow) -> list[bytes]:
    """Returns the groups of a draw, then the recalled attempts that still exist, all encoded."""
    recalled = (task_history.read(txn, r.into, r.group_id, r.slot) for r in draw.recalled)
    found = (codec.encode(group) for group in recalled if group is not None)
    return _limited(chain((txn.record(group_id) for group_id in draw.groups), found))


def records(txn: Txn, rows: Iterable[GroupRow]) -> list[bytes]:
    """Returns the record of each group. An unfinished group has what was accepted so far."""
    return _limited(txn.group_bytes(row) for row in rows)


def _limited(found: Iterable[bytes]) -> list[bytes]:
    records: list[bytes] = []
    size = 0
    for data in found:
        records.append(data)
        size += len(data)
        if size > REPLY_LIMIT:
            raise LimitExceeded(
                f"the reply would have more than {REPLY_LIMIT} bytes; ask for fewer groups"
            )
    return records


def _check_count(count: int, least: int = 1) -> None:
    if not least <= count <= operations.GROUPS_LIMIT:
        raise LimitExceeded(
            f"{count} groups requested: must be {least} to {operations.GROUPS_LIMIT}"
        )

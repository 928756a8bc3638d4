"""What anybody may ask without changing anything. Each answer is one consistent view."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from buffer.groups.retention import plan, summary
from buffer.storage.layout import tag_prefix
from buffer.storage.rows import Entry, Evicted
from buffer.storage.transaction import Txn, not_found
from buffer.wire import messages
from buffer.wire.frames import Record
from buffer.wire.messages import Ids
from r3l.errors import LimitExceeded, NotFound

ANSWER_LIMIT = 512 << 20  # bytes of one answer


def history(txn: Txn, args: messages.AskHistory) -> list[Entry]:
    """The last `count` groups of a training task that were completed with a trajectory."""
    _check_count(args.count)
    prefix = args.task_id.encode() + b"\0"
    found: list[Entry] = []
    for key, _ in txn.scan("history", prefix, backwards=True, values=False):
        entry = txn.entry(key[len(prefix) :].decode())
        if entry is not None and entry.purpose == "train" and entry.whole and entry.done:
            found.append(entry)
        if len(found) == args.count:
            break
    return found if args.newest_first else found[::-1]


def query(txn: Txn, args: messages.AskQuery) -> list[Entry]:
    """The newest `limit` groups of a purpose, tag and state, newest first."""
    _check_count(args.limit)
    found: list[Entry] = []
    for entry in _listed(txn, args):
        if args.purpose in (None, entry.purpose) and args.state in (None, entry.state):
            found.append(entry)
        if len(found) == args.limit:
            break
    return found


def ledger(txn: Txn, args: messages.AskLedger) -> Ids:
    """The groups a step was trained on."""
    entry = txn.ledger(args.step)
    if entry is None:
        raise NotFound(f"step {args.step} is not in the ledger")
    return Ids(entry.groups)


def would_evict(txn: Txn, args: messages.AskEvict) -> Evicted:
    """What `evict` would remove, all of it."""
    return summary(list(plan(txn, args.limits, time.time())))


def groups(txn: Txn, args: messages.AskGroups) -> list[Entry]:
    """Groups by id, in the order asked for."""
    _check_count(len(args.group_ids), least=0)
    return list(_entries(txn, args.group_ids))


def drawn(txn: Txn, group_ids: Iterable[str]) -> list[Record]:
    """The records of groups that are complete, as they were written."""
    return _limited(txn.sealed(group_id) for group_id in group_ids)


def records(txn: Txn, entries: Iterable[Entry]) -> list[Record]:
    """The record of each group, unfinished ones as far as they are."""
    return _limited(txn.group_bytes(entry) for entry in entries)


def _limited(found: Iterable[Record]) -> list[Record]:
    records: list[Record] = []
    size = 0
    for data in found:
        records.append(data)
        size += len(data)
        if size > ANSWER_LIMIT:
            raise LimitExceeded(f"an answer of more than {ANSWER_LIMIT} bytes; ask for fewer")
    return records


def _entries(txn: Txn, group_ids: Iterable[str]) -> Iterator[Entry]:
    for group_id in group_ids:
        entry = txn.entry(group_id)
        if entry is None:
            raise not_found(txn, group_id)
        yield entry


def _listed(txn: Txn, args: messages.AskQuery) -> Iterator[Entry]:
    if args.tag is None:
        yield from txn.entries(backwards=True)
        return
    for purpose in ("eval", "train") if args.purpose is None else (args.purpose,):
        prefix = tag_prefix(purpose, args.tag)
        for key, _ in txn.scan("tag", prefix, backwards=True, values=False):
            yield from _entries(txn, [key[len(prefix) :].decode()])


def _check_count(count: int, least: int = 1) -> None:
    if not least <= count <= messages.GROUPS_LIMIT:
        raise LimitExceeded(
            f"{count} groups asked for; an answer has {least} to {messages.GROUPS_LIMIT}"
        )

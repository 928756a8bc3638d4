"""Keeps the progress of open slots for the next actor that leases the group.

an attempt's first progress ─► whole ─┐
what each later one adds to it ───────┴─► a chain in table `partial` ─► lease: the newest progress

Only what is new is sent, read and written. Each link of a chain holds the digest of the whole
progress up to that link. An actor names the progress that it extends by its digest. When an attempt
is continued, its chain is checked, and ends before the first link that is damaged or does not lead
to its digest. So an actor only ever continues progress that an actor has sent.
"""

from collections.abc import Sequence

from buffer.groups.learner_version import check_version
from buffer.groups.results import check_put, free_bytes, row_of
from buffer.groups.staleness import is_stale
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.layout import link_key, part_key
from buffer.storage.stored_rows import GroupRow, ProgressLink
from buffer.storage.transaction import Txn
from buffer.wire import operations
from buffer.wire.increments import Growing, digest
from buffer.wire.operations import Amount
from buffer.wire.received import Received, read_result
from r3l import codec
from r3l.errors import LimitExceeded, ProgressGap, RecordError, SickResult, StoreError
from r3l.records import SlotResult

LINKS = 64  # most links of a chain; the next one is written as a whole progress


def put_partial(work: UnitOfWork, args: operations.PutPartial) -> Amount:
    """Stores the newer progress of an open slot. Returns 0 if the slot is resolved. Raises
    ProgressGap if it extends progress that is not stored."""
    row = row_of(work, args.group_id)
    if args.slot in row.resolved_slots:
        return Amount(0)
    check_put(work, row, args.actor, [])
    if args.slot >= row.slots:  # the check names it
        check_put(work, row, args.actor, [_checked(args, args.data)])
    keys = keys_of(work.txn, row.group_id, args.slot)
    last = _link(work.txn, keys[-1]) if keys else None
    if last is not None and last.rid == row.rid and 0 < args.serial <= last.serial:
        return Amount(1)  # a repeated or late one: the stored progress contains it
    if args.since:
        number, nbytes = _place(work.txn, keys, args)
    else:
        number, nbytes = 0, 0
        check_put(work, row, args.actor, [_checked(args, args.data)])
    if (nbytes := nbytes + len(args.data)) > free_bytes(row):
        raise LimitExceeded(f"group {row.group_id}: its progress has {nbytes} bytes too many")
    link = ProgressLink(args.data, args.digest, row.rid, args.serial, nbytes)
    if number >= LINKS:
        encoded = whole([*links(work.txn, row.group_id, args.slot)[:number], link])
        _checked(args, encoded)
        number, link = 0, ProgressLink(encoded, args.digest, row.rid, args.serial, len(encoded))
    _cut(work.txn, row.group_id, args.slot, number)
    work.txn.put("partial", link_key(row.group_id, args.slot, number), codec.encode(link))
    return Amount(1)


def partial_results(work: UnitOfWork, row: GroupRow) -> tuple[SlotResult, ...]:
    """Returns the stored progress of open slots. Deletes progress that is damaged, comes from a
    sick engine, is too large for one reply or is too old to train on."""
    found, room = [], free_bytes(row)
    learner, limit = work.index.progress.version, work.config.max_staleness
    for slot in slots_with_progress(work.txn, row.group_id):
        stored = len(keys_of(work.txn, row.group_id, slot))
        sound, data = newest(work.txn, row.group_id, slot)
        cause = "damaged"
        try:
            received = read_result(memoryview(data))
            check_version(work, received.newest)
            result = received.record
            oldest = result.trajectory.oldest_version if result.trajectory else learner
            stale = row.purpose == "train" and is_stale(oldest, learner=learner, limit=limit)
            cause = "stale" if stale else "too_large" if len(data) > room else ""
        except SickResult as error:
            cause = error.cause
        except RecordError:
            pass
        if cause:
            _cut(work.txn, row.group_id, slot, 0)
            work.count(f"partial_dropped/{cause}")
            continue
        if sound < stored:  # the newest turns are lost, the others are not
            _cut(work.txn, row.group_id, slot, sound)
            work.count("partial_dropped/increment", stored - sound)
        room -= len(data)
        found.append(result)
    return tuple(found)


# ── chains ──────────────────────────────────────────────────────────────────────────────────


def slots_with_progress(txn: Txn, group_id: str) -> list[int]:
    """Returns the slots of a group that have progress."""
    first = len(group_id.encode()) + 1
    return sorted({int(key[first : first + 6]) for key in txn.partial_keys(group_id)})


def keys_of(txn: Txn, group_id: str, slot: int) -> list[bytes]:
    """Returns the keys of a slot's links."""
    return list(txn.keys("partial", part_key(group_id, slot)))


def links(txn: Txn, group_id: str, slot: int) -> list[ProgressLink]:
    """Returns the chain of a slot, up to the first link that is missing or damaged."""
    found: list[ProgressLink] = []
    for number, key in enumerate(keys_of(txn, group_id, slot)):
        link = _link(txn, key)
        if link is None or key != link_key(group_id, slot, number):
            break
        found.append(link)
    return found


def newest(txn: Txn, group_id: str, slot: int) -> tuple[int, bytes]:
    """Returns the newest sound progress of a slot, encoded, and the number of its links; b"" and 0
    if there is none."""
    chain = links(txn, group_id, slot)
    while chain:
        try:
            encoded = whole(chain)
            if digest(encoded) == chain[-1].digest:
                return len(chain), encoded
        except RecordError:
            pass
        chain.pop()
    return 0, b""


def whole(chain: Sequence[ProgressLink]) -> bytes:
    """Returns the encoded progress to which a chain leads. Raises RecordError."""
    first, *more = chain
    if not more:
        return first.data
    growing = Growing(first.data)
    for link in more:
        growing.add(link.data)
    return growing.encoded()


def _link(txn: Txn, key: bytes) -> ProgressLink | None:
    """Returns a link, or None if it is damaged."""
    try:
        return codec.decode(ProgressLink, txn.get("partial", key) or b"")
    except (StoreError, RecordError):
        return None


def _place(txn: Txn, keys: Sequence[bytes], args: operations.PutPartial) -> tuple[int, int]:
    """Returns the number of the link that a request adds, and the bytes of those before it. What it
    adds contains the links from this number on, whose acknowledgements were lost."""
    for number in range(len(keys), 0, -1):
        link = _link(txn, keys[number - 1])
        if link is not None and link.digest == args.since:
            return number, link.nbytes
    raise ProgressGap(
        f"slot {args.slot} of group {args.group_id}: the progress that this adds to is not stored; "
        "send the whole progress",
        group_id=args.group_id,
        slot=args.slot,
    )


def _checked(args: operations.PutPartial, encoded: bytes) -> Received[SlotResult]:
    """Reads a progress. Raises RecordError if it is not the one that was sent, SickResult for
    impossible log-probabilities or versions."""
    where = f"progress of slot {args.slot}"
    if digest(encoded) != args.digest:
        raise RecordError(f"{where}: differs from the sent one (digest)", field="digest")
    received = read_result(memoryview(encoded))
    if received.record.slot != args.slot:
        raise RecordError(f"{where}: has a result of slot {received.record.slot}", field="slot")
    if received.record.trajectory is None:
        raise RecordError(f"{where}: has no trajectory", field="trajectory")
    return received


def _cut(txn: Txn, group_id: str, slot: int, length: int) -> None:
    """Deletes the links of a slot from number `length` on."""
    first = link_key(group_id, slot, length)
    for key in keys_of(txn, group_id, slot):
        if key >= first:
            txn.delete("partial", key)

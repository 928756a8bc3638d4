"""Accepts the results of slots. Keeps the progress of open slots for the next actor that leases the
group."""

from collections.abc import Sequence

from buffer.groups.completion import finish, with_resolved
from buffer.groups.learner_version import check_version
from buffer.groups.slot_outcome import SlotOutcome, decode_outcome
from buffer.groups.staleness import is_stale
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage import result_checksums
from buffer.storage.layout import part_key
from buffer.storage.rows import GroupRow
from buffer.wire import operations
from buffer.wire.operations import Amount, PutAck
from r3l import codec
from r3l.errors import Conflict, LeaseLost, LimitExceeded, RecordError, StoreError
from r3l.records import TASK_LIMIT, SlotResult
from r3l.weights.manifest import fingerprints_agree

_GROUP_LIMIT = codec.RECORD_LIMIT - 2 * TASK_LIMIT  # bytes of all results of a group
_SMALL = 256  # bytes of a result that is accepted beyond the limit, to leave room for failures


def put(work: UnitOfWork, args: operations.Put) -> PutAck:
    """Accepts all results or none. Raises Conflict if a slot already has a different result."""
    row = _row(work, args.group_id)
    sent = [decode_outcome(memoryview(result)) for result in args.results]
    if len({outcome.key for outcome in sent}) < len(sent):
        raise RecordError("a put request has two results for the same slot", field="slot")
    new = [outcome for outcome in sent if outcome.key not in row.resolved]
    if new:
        _check_put(work, row, args.actor, new)
    _check_same(row, sent)
    if new:
        row = _accept(work, row, new, args.fingerprint)
        work.count("puts", len(new))
    return PutAck(new=len(new), complete=row.all_resolved)


def put_partial(work: UnitOfWork, args: operations.PutPartial) -> Amount:
    """Replaces the stored progress of an open slot. Returns 0 if the slot is resolved."""
    row = _row(work, args.group_id)
    outcome = decode_outcome(memoryview(args.result))
    if outcome.key in row.resolved:
        return Amount(0)
    _check_put(work, row, args.actor, [outcome])
    work.txn.put("partial", part_key(row.group_id, *outcome.key), outcome.encoded)
    return Amount(1)


def partial_results(work: UnitOfWork, row: GroupRow) -> tuple[SlotResult, ...]:
    """Returns the stored progress of open slots. Deletes progress that is damaged, too large for
    one reply or too old to train on."""
    found, size = [], row.nbytes
    learner, limit = work.index.progress.version, work.config.max_staleness
    for key in work.txn.partial_keys(row.group_id):
        try:
            data = work.txn.get("partial", key) or b""
            result = codec.decode(SlotResult, data)
            oldest = result.trajectory.oldest_version if result.trajectory else learner
            stale = row.purpose == "train" and is_stale(oldest, learner=learner, limit=limit)
            large = size + len(data) > _GROUP_LIMIT
            cause = "stale" if stale else "too_large" if large else ""
        except (StoreError, RecordError):
            cause = "damaged"
        if cause:
            work.txn.delete("partial", key)
            work.count(f"partial_dropped/{cause}")
        else:
            size += len(data)
            found.append(result)
    return tuple(found)


def _row(work: UnitOfWork, group_id: str) -> GroupRow:
    """Returns a group's row. Raises LeaseLost if it was evicted, NotFound if it never existed."""
    row = work.find(group_id)
    if row is None and work.txn.evicted(group_id):
        raise LeaseLost(
            f"group {group_id} was evicted; it takes no more results",
            group_id=group_id,
            state="evicted",
        )
    return row or work.row(group_id)


# ── checks ──────────────────────────────────────────────────────────────────────────────────


def _check_put(work: UnitOfWork, row: GroupRow, actor: str, new: Sequence[SlotOutcome]) -> None:
    """Raises an error unless this actor may resolve these slots now."""
    for outcome in new:
        if outcome.key not in row.plan.slots():
            raise RecordError(
                f"{outcome.role} slot {outcome.slot} is not in the plan of group {row.group_id} "
                f"({row.plan.base} base, {row.plan.distilled} distilled)",
                field="slot",
            )
        if outcome.newest >= 0:
            check_version(work, outcome.newest)
    if not row.unfinished or row.actor != actor:
        holder = row.actor if row.unfinished else f"no actor; the group is {row.state}"
        raise LeaseLost(
            f"group {row.group_id} is not leased to {actor!r:.80} but to {holder or 'no actor'}",
            group_id=row.group_id,
            state=row.state,
        )
    size = sum(len(outcome.encoded) for outcome in new)
    if row.nbytes + size > _GROUP_LIMIT and size > _SMALL * len(new):
        raise LimitExceeded(
            f"group {row.group_id}: {row.nbytes + size} bytes; limit {_GROUP_LIMIT}"
        )
    if work.full:
        raise StoreError(f"the store is full: {work.full}; nothing was written", cause="full")


def _check_same(row: GroupRow, sent: Sequence[SlotOutcome]) -> None:
    """Raises Conflict if a sent result differs from the stored result of the same slot."""
    kept = result_checksums.by_slot(row)
    for outcome in sent:
        if kept.get(outcome.key, outcome.checksum) != outcome.checksum:
            raise Conflict(
                f"{outcome.role} slot {outcome.slot} of group {row.group_id} already has a "
                "different result, which is kept",
                group_id=row.group_id,
                state=row.state,
            )


# ── changes ─────────────────────────────────────────────────────────────────────────────────


def _accept(
    work: UnitOfWork, row: GroupRow, new: Sequence[SlotOutcome], fingerprint: tuple[int, str] | None
) -> GroupRow:
    """Accepts results of open slots. The last result finishes the group."""
    filled = with_resolved(row, new).with_changes(
        lease_expired=False,
        deadline=work.now + work.config.lease_s,
        fingerprints=_with_fingerprint(work, row, fingerprint),
    )
    if filled.all_resolved:
        return finish(work, filled, "put", new)
    for outcome in new:
        work.txn.put_part(row.group_id, outcome.role, outcome.slot, outcome.encoded)
    if row.state == "filling":
        return work.save(filled, "put")
    return work.move(filled, "filling", "put")


def _with_fingerprint(
    work: UnitOfWork, row: GroupRow, fingerprint: tuple[int, str] | None
) -> dict[int, str]:
    """Returns the group's weight fingerprints, keyed by policy version, with the new one added.
    Contradictory fingerprints of a version are joined with "|"."""
    if fingerprint is None:
        return row.fingerprints
    version, new = fingerprint
    known = row.fingerprints.get(version, new).split("|")
    same = [at for at, old in enumerate(known) if fingerprints_agree(old, new)]
    if same:
        known[same[0]] = max(known[same[0]], new, key=len)  # the longer one covers more
    else:
        work.count("fingerprint_conflicts")
        known.append(new)
    return row.fingerprints | {version: "|".join(known)}

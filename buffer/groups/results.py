"""Accepts results of slots, and reflections."""

from collections.abc import Mapping, Sequence
from typing import Any

from buffer.groups.completion import finish, with_received
from buffer.groups.learner_version import check_version
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage import result_checksums
from buffer.storage.stored_rows import GroupRow
from buffer.storage.transaction import Parts
from buffer.wire import operations
from buffer.wire.operations import PutAck
from buffer.wire.received import (
    K,
    R,
    Received,
    read_distinct,
    read_reflection,
    read_result,
)
from r3l import codec
from r3l.errors import Conflict, LeaseLost, LimitExceeded, RecordError, StoreError
from r3l.records import TASK_LIMIT, ReflectionRecord, SlotResult
from r3l.weights.manifest import fingerprints_agree

GROUP_LIMIT = codec.GROUP_LIMIT - 2 * TASK_LIMIT  # bytes of a group's results and reflections
_SMALL = 256  # bytes of a result that is accepted beyond the limit, to leave room for failures


def put(work: UnitOfWork, args: operations.Put) -> PutAck:
    """Accepts all results and reflections or none. Raises Conflict if a slot already has a
    different result, or a name another reflection."""
    if not args.results and not args.reflections:
        raise RecordError("a put has neither a result nor a reflection", field="results")
    row = row_of(work, args.group_id)
    results = read_distinct(args.results, read_result, lambda result: result.slot)
    reflections = read_distinct(args.reflections, read_reflection, lambda thought: thought.name)
    kept, named = result_checksums.by_slot(row), dict(row.reflections)
    new = [received for slot, received in results.items() if slot not in kept]
    thoughts = [received for name, received in reflections.items() if name not in named]
    if new or thoughts:
        check_put(work, row, args.actor, new, thoughts)
    _check_same(row, "slot", kept, results)
    _check_same(row, "reflection", named, reflections)
    if new or thoughts:
        row = _accept(work, row, new, thoughts, args.fingerprint)
        work.count("puts", len(new))
    return PutAck(new=len(new) + len(thoughts), complete=row.all_resolved)


def row_of(work: UnitOfWork, group_id: str) -> GroupRow:
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


def check_put(
    work: UnitOfWork,
    row: GroupRow,
    actor: str,
    new: Sequence[Received[SlotResult]],
    reflections: Sequence[Received[ReflectionRecord]] = (),
) -> None:
    """Raises an error unless this actor may resolve these slots, and add these reflections, now."""
    received: list[Received[Any]] = [*new, *reflections]
    for slot in (each.record.slot for each in new):
        if slot >= row.slots:
            raise RecordError(
                f"slot {slot} is not in the plan of group {row.group_id}, which has slots 0 to "
                f"{row.slots - 1}",
                field="slot",
            )
    for each in received:
        if each.newest >= 0:
            check_version(work, each.newest)
    if not row.unfinished or row.actor != actor:
        holder = row.actor if row.unfinished else f"no actor; the group is {row.state}"
        raise LeaseLost(
            f"group {row.group_id} is not leased to {actor!r:.80} but to {holder or 'no actor'}",
            group_id=row.group_id,
            state=row.state,
        )
    size = sum(len(each.encoded) for each in received)
    if row.nbytes + size > GROUP_LIMIT and size > _SMALL * len(received):
        raise LimitExceeded(f"group {row.group_id}: {row.nbytes + size} bytes; limit {GROUP_LIMIT}")
    if len(row.reflections) + len(reflections) > operations.REFLECTIONS_LIMIT:
        raise LimitExceeded(
            f"group {row.group_id}: may have at most {operations.REFLECTIONS_LIMIT} reflections"
        )
    if work.full:
        raise StoreError(f"the store is full: {work.full}; nothing was written", cause="full")


def free_bytes(row: GroupRow) -> int:
    """Returns how many bytes of results and reflections a group may still get."""
    return GROUP_LIMIT - row.nbytes


def _check_same(
    row: GroupRow, what: str, kept: Mapping[K, int], sent: Mapping[K, Received[R]]
) -> None:
    """Raises Conflict if a sent record differs from the stored one of its slot or name."""
    for key, received in sent.items():
        if kept.get(key, received.checksum) != received.checksum:
            raise Conflict(
                f"{what} {key} of group {row.group_id}: a different one is stored already, and is "
                "kept",
                group_id=row.group_id,
                state=row.state,
            )


# ── changes ─────────────────────────────────────────────────────────────────────────────────


def _accept(
    work: UnitOfWork,
    row: GroupRow,
    new: Sequence[Received[SlotResult]],
    reflections: Sequence[Received[ReflectionRecord]],
    fingerprint: tuple[int, str] | None,
) -> GroupRow:
    """Accepts results of open slots, and reflections. The last result finishes the group."""
    filled = with_received(row, new, reflections).with_changes(
        lease_expired=False,
        deadline=work.now + work.config.lease_s,
        fingerprints=_with_fingerprint(work, row, fingerprint),
    )
    parts = Parts(
        {each.record.slot: each.encoded for each in new},
        {each.record.name: each.encoded for each in reflections},
    )
    if filled.all_resolved:
        return finish(work, filled, "put", parts)
    work.txn.put_parts(row.group_id, parts)
    if row.state == "filling" or not new:
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

"""How results fill a group, and how the last one, or its deadline, finishes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from buffer import protocol
from buffer.book import Book
from buffer.entry import Entry
from r3l import codec
from r3l.errors import LeaseLost, LimitExceeded, RecordError, StoreError
from r3l.records import STRAGGLER, Role, SlotResult

REWARD_LIMIT = 1e9  # keeps sums and powers of rewards finite
CAUSE_LIMIT = 80  # bytes; causes are names to be counted under, with the task, in one LMDB key
_GROUP_LIMIT = codec.RECORD_LIMIT - 2 * protocol.TASK_LIMIT  # bytes of all results of a group
Results = dict[tuple[Role, int], tuple[SlotResult, bytes]]  # by role and slot, with its encoding


def check_put(
    book: Book, entry: Entry, args: protocol.Put, results: Sequence[SlotResult], nbytes: int
) -> None:
    """Raise unless this actor may resolve these slots of the group now."""
    for result in results:
        _check_result(entry, result)
    if not entry.unfinished or entry.actor != args.actor:
        holder = entry.actor if entry.unfinished else f"nobody; the group is {entry.state}"
        raise LeaseLost(
            f"group {entry.group_id} is not leased to {args.actor!r:.80} but to "
            f"{holder or 'nobody'}",
            group_id=entry.group_id,
            state=entry.state,
        )
    if entry.nbytes + nbytes > _GROUP_LIMIT:
        raise LimitExceeded(
            f"group {entry.group_id}: {entry.nbytes + nbytes} bytes; limit {_GROUP_LIMIT}"
        )
    if book.full:
        raise StoreError(f"the store is full: {book.full}; nothing was written", cause="full")


def check_cause(cause: str) -> None:
    """Raise LimitExceeded for a cause that cannot be counted under."""
    if len(cause.encode()) > CAUSE_LIMIT or "\0" in cause:
        raise LimitExceeded(f"cause {cause!r:.120}: at most {CAUSE_LIMIT} bytes, none of them NUL")


def accept(book: Book, entry: Entry, new: Results) -> Entry:
    """Take in results of unresolved slots; the group is finished if they were the last, or if
    its deadline has passed and they make the quorum."""
    entry = _resolve(book, entry, [result for result, _ in new.values()])
    entry = replace(
        entry,
        nbytes=entry.nbytes + sum(len(data) for _, data in new.values()),
        lapsed=False,
        deadline=book.now + book.settings.lease_s,
    )
    data = {key: encoded for key, (_, encoded) in new.items()}
    if entry.whole:
        return _finish(book, entry, data)
    for (role, slot), encoded in data.items():
        book.txn.put_part(entry.group_id, role, slot, encoded)
    entry = book.save(entry) if entry.state == "filling" else book.move(entry, "filling")
    return give_up_stragglers(book, entry) if quorum(book, entry) else entry


def quorum(book: Book, entry: Entry) -> bool:
    """A training group has waited `straggler_s` for its slots and has `min_base` base attempts."""
    settings = book.settings
    return (
        settings.straggler_s > 0
        and entry.purpose == "train"
        and entry.unfinished
        and entry.done_base >= settings.min_base
        and book.now > entry.times["leased"] + settings.straggler_s
    )


def give_up_stragglers(book: Book, entry: Entry) -> Entry:
    """Complete a group with what it has: the other slots failed with cause STRAGGLER."""
    missing = [slot for slot in entry.plan.slots() if slot not in entry.resolved]
    late = [SlotResult(role, slot, "failed", cause=STRAGGLER) for role, slot in missing]
    book.count("quorums")
    entry = _resolve(book, entry, late)
    return _finish(book, entry, {(r.role, r.slot): codec.encode(r) for r in late})


def with_fingerprint(book: Book, entry: Entry, stamp: tuple[int, str] | None) -> Entry:
    """Remember the hash of the weights that sampled; engines that disagree leave evidence."""
    if stamp is None:
        return entry
    version, digest = stamp
    known = entry.fingerprints.get(version, digest)
    if digest not in known.split("|"):
        book.count("fingerprint_conflicts")
        known = f"{known}|{digest}"
    return replace(entry, fingerprints=entry.fingerprints | {version: known})


def _check_result(entry: Entry, result: SlotResult) -> None:
    plan, trajectory = entry.plan, result.trajectory
    if result.slot >= (plan.base if result.role == "base" else plan.distilled):
        raise RecordError(
            f"{result.role} slot {result.slot} is not in the plan of group {entry.group_id} "
            f"({plan.base} base, {plan.distilled} distilled)",
            field="slot",
        )
    check_cause(result.cause)
    if trajectory is not None and abs(trajectory.reward) > REWARD_LIMIT:
        raise LimitExceeded(f"reward {trajectory.reward}: must be within ±{REWARD_LIMIT:g}")


def _resolve(book: Book, entry: Entry, results: Sequence[SlotResult]) -> Entry:
    """The group's state with these slots resolved; failures are counted."""
    attempts = [result.trajectory for result in results if result.trajectory is not None]
    failed = [result for result in results if result.status == "failed"]
    for result in failed:
        book.drop(result.cause, result.role, entry.task_id)
    oldest = [attempt.oldest_version for attempt in attempts]
    return replace(
        entry,
        resolved=(*entry.resolved, *((result.role, result.slot) for result in results)),
        failures=(*entry.failures, *(f"{result.role}/{result.cause}" for result in failed)),
        done=entry.done + len(attempts),
        done_base=entry.done_base + sum(attempt.role == "base" for attempt in attempts),
        rewards=(*entry.rewards, *(attempt.reward for attempt in attempts)),
        oldest=min(oldest + [entry.oldest] * (entry.oldest >= 0), default=-1),
    )


def _finish(book: Book, entry: Entry, last: dict[tuple[Role, int], bytes]) -> Entry:
    """Every slot is resolved: make the group one record, or drop it if nothing came of it."""
    if not entry.done:
        return book.expire(entry, "no_trajectories", last)
    entry = book.move(entry, "complete")
    book.txn.seal(entry, last)
    return entry

"""How results fill a group, and how the last one, or its deadline, finishes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from buffer.groups import incoming
from buffer.groups.incoming import Outcome
from buffer.groups.unit_of_work import Book
from buffer.storage import checksums
from buffer.storage.rows import Entry
from buffer.storage.transaction import Parts
from buffer.wire import messages
from buffer.wire.frames import Record
from buffer.wire.messages import PutAck
from r3l import codec
from r3l.errors import Conflict, LeaseLost, LimitExceeded, RecordError, StoreError
from r3l.records import STRAGGLER, Role, SlotResult, SlotStatus

REWARD_LIMIT = 1e9  # keeps sums and powers of rewards finite
CAUSE_LIMIT = 80  # bytes; causes are names to be counted under, with the task, in one LMDB key
_GROUP_LIMIT = codec.RECORD_LIMIT - 2 * messages.TASK_LIMIT  # bytes of all results of a group
_ALWAYS = 256  # bytes of a result that is taken beyond the limit too: a failure always has room
Results = dict[tuple[Role, int], tuple[Outcome, Record]]  # by role and slot, and as encoded


def check_put(book: Book, entry: Entry, args: messages.Put, new: Results) -> None:
    """Raise unless this actor may resolve these slots of the group now."""
    _check_outcomes(entry, [told for told, _ in new.values()])
    if not entry.unfinished or entry.actor != args.actor:
        holder = entry.actor if entry.unfinished else f"nobody; the group is {entry.state}"
        raise LeaseLost(
            f"group {entry.group_id} is not leased to {args.actor!r:.80} but to "
            f"{holder or 'nobody'}",
            group_id=entry.group_id,
            state=entry.state,
        )
    size = _size([encoded for _, encoded in new.values()])
    if entry.nbytes + size > _GROUP_LIMIT and size > _ALWAYS * len(new):
        raise LimitExceeded(
            f"group {entry.group_id}: {entry.nbytes + size} bytes; limit {_GROUP_LIMIT}"
        )
    if book.full:
        raise StoreError(f"the store is full: {book.full}; nothing was written", cause="full")


def check_again(book: Book, entry: Entry, told: Results) -> None:
    """Raise Conflict if a slot that is resolved was put with another result than the first.

    A straggler's late result is no conflict, nor one of which no checksum was kept.
    """
    for slot, kept in checksums.known(entry).items():
        if slot not in told or kept in (told[slot][0].checksum, _checksum_late(*slot)):
            continue
        if not checksums.same(book.txn, entry, told[slot][1]):
            raise Conflict(
                f"{slot[0]} slot {slot[1]} of group {entry.group_id} was resolved with another "
                "result already; that one stays",
                group_id=entry.group_id,
                state=entry.state,
            )


def check_cause(cause: str) -> None:
    """Raise LimitExceeded for a cause that cannot be counted under."""
    if len(cause.encode()) > CAUSE_LIMIT or "\0" in cause:
        raise LimitExceeded(f"cause {cause!r:.120}: at most {CAUSE_LIMIT} bytes, none of them NUL")


def accept(book: Book, entry: Entry, new: Results, stamp: tuple[int, str] | None) -> Entry:
    """Take in results of unresolved slots; the group is finished if they were the last, or if
    its deadline has passed and they make the quorum.

    `stamp`: policy version and hash of the weights that sampled them.
    """
    data = {key: encoded for key, (_, encoded) in new.items()}
    changes = _resolved(book, entry, [told for told, _ in new.values()])
    changes |= {
        "nbytes": entry.nbytes + _size(data.values()),
        "lapsed": False,
        "deadline": book.now + book.settings.lease_s,
        "fingerprints": _with_stamp(book, entry, stamp),
    }
    if len(changes["resolved"]) == entry.slots:
        return _finish(book, entry, changes, data)
    for (role, slot), encoded in data.items():
        book.txn.put_part(entry.group_id, role, slot, encoded)
    if entry.state == "filling":
        entry = book.save(entry.but(**changes))
    else:
        entry = book.move(entry, "filling", **changes)
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
    data: Parts = {(role, slot): _late(role, slot) for role, slot in missing}
    book.count("quorums")
    changes = _resolved(book, entry, [incoming.check(result) for result in data.values()])
    return _finish(book, entry, changes, data)


def _late(role: Role, slot: int) -> bytes:
    """What stands in for a straggler's result."""
    return codec.encode(SlotResult(role, slot, "failed", cause=STRAGGLER))


@lru_cache(maxsize=1024)
def _checksum_late(role: Role, slot: int) -> int:
    return checksums.checksum(_late(role, slot))


def _with_stamp(book: Book, entry: Entry, stamp: tuple[int, str] | None) -> dict[int, str]:
    """The hashes of the weights that sampled; engines that disagree leave evidence."""
    if stamp is None:
        return entry.fingerprints
    version, digest = stamp
    known = entry.fingerprints.get(version, digest)
    if digest not in known.split("|"):
        book.count("fingerprint_conflicts")
        known = f"{known}|{digest}"
    return entry.fingerprints | {version: known}


def _size(data: Iterable[Record]) -> int:
    return sum(map(len, data))


def _check_outcomes(entry: Entry, results: Sequence[Outcome]) -> None:
    plan = entry.plan
    for role, slot, _, cause, reward, *_ in results:
        if slot >= (plan.base if role == "base" else plan.distilled):
            raise RecordError(
                f"{role} slot {slot} is not in the plan of group {entry.group_id} "
                f"({plan.base} base, {plan.distilled} distilled)",
                field="slot",
            )
        if cause:
            check_cause(cause)
        if reward is not None and abs(reward) > REWARD_LIMIT:
            raise LimitExceeded(f"reward {reward}: must be within ±{REWARD_LIMIT:g}")


def _resolved(book: Book, entry: Entry, results: Sequence[Outcome]) -> dict[str, Any]:
    """What changes about a group when these slots are resolved; failures are counted."""
    unknown = (checksums.UNKNOWN,) * (len(entry.resolved) - len(entry.checksums))
    rewards, failures, done_base = list(entry.rewards), list(entry.failures), entry.done_base
    oldest = [entry.oldest] if entry.oldest >= 0 else []
    for result in results:
        if result.reward is not None:
            rewards.append(result.reward)
            oldest.append(result.oldest)
            done_base += result.role == "base"
        elif result.status == "failed":
            failures.append(f"{result.role}/{result.cause}")
            book.drop(result.cause, result.role, entry.task_id)
    return {
        "resolved": entry.resolved + tuple([(result.role, result.slot) for result in results]),
        "checksums": entry.checksums + unknown + tuple([result.checksum for result in results]),
        "failures": tuple(failures),
        "done": entry.done + len(rewards) - len(entry.rewards),
        "done_base": done_base,
        "rewards": tuple(rewards),
        "oldest": min(oldest, default=-1),
    }


def _finish(book: Book, entry: Entry, changes: dict[str, Any], last: Parts) -> Entry:
    """Every slot is resolved: make the group one record, or drop it if nothing came of it."""
    if not changes["done"]:
        return book.expire(entry.but(**changes), "no_trajectories", last)
    parted = entry.state == "filling"
    entry = book.move(entry, "complete", **changes)
    book.txn.seal(entry, last, parted=parted)
    return entry


def put(
    book: Book, args: messages.Put, outcomes: Sequence[Outcome], data: Sequence[Record]
) -> PutAck:
    """Resolve slots with `data`, encoded slot results; the last one finishes the group.

    All are accepted or none. Slots that are resolved already are left as they are; raises Conflict
    for one that was resolved with another result.
    """
    entry = book.find(args.group_id)
    if entry is None and book.txn.evicted(args.group_id):
        raise LeaseLost(
            f"group {args.group_id} was evicted; nothing more is taken for it",
            group_id=args.group_id,
            state="evicted",
        )
    entry = entry or book.entry(args.group_id)
    told = {(o.role, o.slot): (o, encoded) for o, encoded in zip(outcomes, data, strict=True)}
    if len(told) < len(outcomes):
        raise RecordError("a slot is resolved twice in one put", field="slot")
    new = {slot: result for slot, result in told.items() if slot not in entry.resolved}
    if new:
        check_put(book, entry, args, new)
    if len(new) < len(told):
        check_again(book, entry, told)
    if new:
        entry = accept(book, entry, new, args.fingerprint)
        book.count("puts", len(new))
    return PutAck(new=len(new), complete=entry.whole)


def resolve(book: Book, args: messages.Resolve) -> PutAck:
    """Resolve a slot without a trajectory: failed with a cause, or not triggered."""
    status: SlotStatus = "failed" if args.cause else "not_triggered"
    result = codec.encode(SlotResult(args.role, args.slot, status, cause=args.cause))
    put_args = messages.Put(args.group_id, args.actor, None)
    return put(book, put_args, (incoming.check(result),), (result,))

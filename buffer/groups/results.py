"""Results: they fill a group, and the last one or a deadline finishes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from buffer.groups import incoming
from buffer.groups.incoming import Outcome
from buffer.groups.states import Operation
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage import checksums
from buffer.storage.rows import GroupRow
from buffer.storage.transaction import Parts
from buffer.wire import operations
from buffer.wire.operations import PutAck
from r3l import codec
from r3l.errors import Conflict, LeaseLost, LimitExceeded, RecordError, StoreError
from r3l.records import STRAGGLER, Role, SlotResult, SlotStatus

REWARD_LIMIT = 1e9  # keeps sums and powers of rewards finite
CAUSE_LIMIT = 80  # bytes; causes are names to be counted under, with the task, in one LMDB key
_GROUP_LIMIT = codec.RECORD_LIMIT - 2 * operations.TASK_LIMIT  # bytes of all results of a group
_SMALL = 256  # bytes of a result that is accepted beyond the limit too: room for failures
Results = dict[tuple[Role, int], tuple[Outcome, bytes | memoryview]]  # outcome and bytes, by slot


def put(work: UnitOfWork, args: operations.Put) -> PutAck:
    """Resolve slots of a group; the last one finishes it.

    All are accepted or none. Slots that are resolved already are left as they are; raises Conflict
    for one that was resolved with another result.
    """
    row = work.find(args.group_id)
    if row is None and work.txn.evicted(args.group_id):
        raise LeaseLost(
            f"group {args.group_id} was evicted; nothing more is taken for it",
            group_id=args.group_id,
            state="evicted",
        )
    row = row or work.row(args.group_id)
    sent: Results = {}
    for raw in args.results:
        encoded = memoryview(raw)
        outcome = incoming.check(encoded)
        sent[outcome.role, outcome.slot] = outcome, encoded
    if len(sent) < len(args.results):
        raise RecordError("a slot is resolved twice in one put", field="slot")
    new = {slot: result for slot, result in sent.items() if slot not in row.resolved}
    if new:
        _check_put(work, row, args, new)
    if len(new) < len(sent):
        _check_resubmitted(row, sent)
    if new:
        row = _accept(work, row, new, args.fingerprint)
        work.count("puts", len(new))
    return PutAck(new=len(new), complete=row.whole)


def resolve(work: UnitOfWork, args: operations.Resolve) -> PutAck:
    """Resolve a slot without a trajectory: failed with a cause, or not triggered."""
    status: SlotStatus = "failed" if args.cause else "not_triggered"
    result = codec.encode(SlotResult(args.role, args.slot, status, cause=args.cause))
    return put(work, operations.Put(args.group_id, args.actor, None, (msgspec.Raw(result),)))


def _check_put(work: UnitOfWork, row: GroupRow, args: operations.Put, new: Results) -> None:
    """Raise unless this actor may resolve these slots of the group now."""
    _check_outcomes(row, [outcome for outcome, _ in new.values()])
    if not row.unfinished or row.actor != args.actor:
        holder = row.actor if row.unfinished else f"nobody; the group is {row.state}"
        raise LeaseLost(
            f"group {row.group_id} is not leased to {args.actor!r:.80} but to {holder or 'nobody'}",
            group_id=row.group_id,
            state=row.state,
        )
    size = _size([encoded for _, encoded in new.values()])
    if row.nbytes + size > _GROUP_LIMIT and size > _SMALL * len(new):
        raise LimitExceeded(
            f"group {row.group_id}: {row.nbytes + size} bytes; limit {_GROUP_LIMIT}"
        )
    if work.full:
        raise StoreError(f"the store is full: {work.full}; nothing was written", cause="full")


def _check_resubmitted(row: GroupRow, sent: Results) -> None:
    """Raise Conflict if a resolved slot is sent with another result than the first.

    The late result of a straggler is not a conflict.
    """
    for slot, kept in checksums.by_slot(row).items():
        if slot in sent and kept not in (sent[slot][0].checksum, _straggler_checksum(*slot)):
            raise Conflict(
                f"{slot[0]} slot {slot[1]} of group {row.group_id} was resolved with another "
                "result already; that one stays",
                group_id=row.group_id,
                state=row.state,
            )


def check_cause(cause: str) -> None:
    """Raise LimitExceeded for a cause that cannot be counted under."""
    if len(cause.encode()) > CAUSE_LIMIT or "\0" in cause:
        raise LimitExceeded(f"cause {cause!r:.120}: at most {CAUSE_LIMIT} bytes, none of them NUL")


def _accept(
    work: UnitOfWork, row: GroupRow, new: Results, fingerprint: tuple[int, str] | None
) -> GroupRow:
    """Take in results of open slots; the group is finished if they were the last, or if its
    deadline has passed and they make the quorum."""
    data = {key: encoded for key, (_, encoded) in new.items()}
    changes = _resolved(work, row, [outcome for outcome, _ in new.values()])
    changes |= {
        "nbytes": row.nbytes + _size(data.values()),
        "lease_expired": False,
        "deadline": work.now + work.config.lease_s,
        "fingerprints": _with_fingerprint(work, row, fingerprint),
    }
    if len(changes["resolved"]) == row.slots:
        return _finish(work, row, "put", changes, data)
    for (role, slot), encoded in data.items():
        work.txn.put_part(row.group_id, role, slot, encoded)
    if row.state == "filling":
        row = work.save(row.but(**changes), "put")
    else:
        row = work.move(row, "filling", "put", **changes)
    return give_up_stragglers(work, row) if quorum(work, row) else row


def quorum(work: UnitOfWork, row: GroupRow) -> bool:
    """A training group has waited `straggler_s` for its slots and has `min_base` base attempts."""
    config = work.config
    return (
        config.straggler_s > 0
        and row.purpose == "train"
        and row.unfinished
        and row.done_base >= config.min_base
        and work.now > row.times["leased"] + config.straggler_s
    )


def give_up_stragglers(work: UnitOfWork, row: GroupRow) -> GroupRow:
    """Complete a group with what it has: the other slots failed with cause STRAGGLER."""
    missing = [slot for slot in row.plan.slots() if slot not in row.resolved]
    data: Parts = {(role, slot): _straggler(role, slot) for role, slot in missing}
    work.count("quorums")
    changes = _resolved(work, row, [incoming.check(result) for result in data.values()])
    return _finish(work, row, "clock", changes, data)


def _straggler(role: Role, slot: int) -> bytes:
    """The result of a slot that its group did not wait for."""
    return codec.encode(SlotResult(role, slot, "failed", cause=STRAGGLER))


@lru_cache(maxsize=1024)
def _straggler_checksum(role: Role, slot: int) -> int:
    return checksums.checksum(_straggler(role, slot))


def _with_fingerprint(
    work: UnitOfWork, row: GroupRow, fingerprint: tuple[int, str] | None
) -> dict[int, str]:
    """The hashes of the weights by policy version; two hashes of one version are both kept."""
    if fingerprint is None:
        return row.fingerprints
    version, digest = fingerprint
    known = row.fingerprints.get(version, digest)
    if digest not in known.split("|"):
        work.count("fingerprint_conflicts")
        known = f"{known}|{digest}"
    return row.fingerprints | {version: known}


def _size(data: Iterable[bytes | memoryview]) -> int:
    return sum(map(len, data))


def _check_outcomes(row: GroupRow, results: Sequence[Outcome]) -> None:
    plan = row.plan
    for role, slot, _, cause, reward, *_ in results:
        if slot >= (plan.base if role == "base" else plan.distilled):
            raise RecordError(
                f"{role} slot {slot} is not in the plan of group {row.group_id} "
                f"({plan.base} base, {plan.distilled} distilled)",
                field="slot",
            )
        if cause:
            check_cause(cause)
        if reward is not None and abs(reward) > REWARD_LIMIT:
            raise LimitExceeded(f"reward {reward}: must be within ±{REWARD_LIMIT:g}")


def _resolved(work: UnitOfWork, row: GroupRow, results: Sequence[Outcome]) -> dict[str, Any]:
    """The fields that change when these slots are resolved; failures are counted."""
    rewards, failures, done_base = list(row.rewards), list(row.failures), row.done_base
    oldest = [row.oldest] if row.oldest >= 0 else []
    for result in results:
        if result.reward is not None:
            rewards.append(result.reward)
            oldest.append(result.oldest)
            done_base += result.role == "base"
        elif result.status == "failed":
            failures.append(f"{result.role}/{result.cause}")
            work.drop(result.cause, result.role, row.task_id)
    return {
        "resolved": row.resolved + tuple([(result.role, result.slot) for result in results]),
        "checksums": row.checksums + tuple([result.checksum for result in results]),
        "failures": tuple(failures),
        "done": row.done + len(rewards) - len(row.rewards),
        "done_base": done_base,
        "rewards": tuple(rewards),
        "oldest": min(oldest, default=-1),
    }


def _finish(
    work: UnitOfWork, row: GroupRow, by: Operation, changes: dict[str, Any], last: Parts
) -> GroupRow:
    """Make a group whose slots are resolved one record; it expires without a trajectory."""
    if not changes["done"]:
        return work.expire(row.but(**changes), "no_trajectories", by, last)
    row = work.move(row, "complete", by, **changes)
    work.txn.seal(row, last)
    return row

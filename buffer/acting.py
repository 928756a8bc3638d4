"""What actors do to the store: tasks, leases, results (DESIGN §3).

Every verb takes a Book and its arguments, checks everything, then changes the Book. An error
leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from buffer import holding, outcome, protocol
from buffer.admission import admits, ahead_of_takeover
from buffer.book import Book
from buffer.entry import Entry
from buffer.filling import accept, check_again, check_put, give_up_stragglers, quorum
from buffer.outcome import Outcome
from buffer.protocol import Amount, Ids, Lease, PutAck, Record, Wait
from buffer.tables import read_result, task_key
from r3l import codec
from r3l.errors import LeaseLost, LimitExceeded, RecordError
from r3l.records import GroupPlan, Purpose, SlotResult, SlotStatus

RETRY_S = 0.25
FULL_RETRY_S = 2.0


def add_tasks(book: Book, args: protocol.AddTasks) -> Amount:
    """Register tasks; known ids change nothing. Returns how many were new."""
    if args.purpose == "train" and args.tag:
        raise RecordError(f"training tasks take no tag; got {args.tag!r:.80}", field="tag")
    for task in args.tasks:
        task_key(args.purpose, args.tag, task.task_id.encode())
        if "\0" in args.tag + task.task_id:
            raise LimitExceeded(f"tag {args.tag!r:.80} or id {task.task_id!r:.80} holds a NUL")
        if (size := len(codec.encode(task))) > protocol.TASK_LIMIT:
            raise LimitExceeded(
                f"task {task.task_id!r:.80}: {size} bytes; limit {protocol.TASK_LIMIT}"
            )
    known = book.index.tasks[args.purpose, args.tag]
    total = known
    for task in args.tasks:
        total += book.txn.add_task(args.purpose, args.tag, total, task)
    book.index.tasks[args.purpose, args.tag] = total
    marks = book.index.marks
    if args.purpose == "eval":
        book.mark(eval_min_version=marks.eval_min_version | {args.tag: args.min_version})
    elif marks.position == 0:  # an epoch that has begun keeps its tasks; new ones join the next
        book.mark(size=total)
    return Amount(total - known)


def lease(book: Book, args: protocol.AskLease, rid: str) -> Lease | Wait:
    """Give the actor a group, abandoned groups before new ones.

    Evaluation and training take turns while both have work: as many groups of each are held, so
    that an evaluation is soon done and generation for training goes on meanwhile.
    """
    check_name(args.actor, "actor")
    _check_plan(args.plan)
    answered = book.index.lease_rids.get(rid)
    if answered is not None:
        return _lease(book, book.index.live[answered])
    if book.full:
        return Wait(f"the store is full: {book.full}; actors wait for space", FULL_RETRY_S)
    notice_lapsed(book)
    if _held(book, "eval") <= _held(book, "train"):
        taken = _evaluation(book, args) or _training(book, args)
    else:
        taken = _training(book, args)
        if isinstance(taken, Wait):
            taken = _evaluation(book, args) or taken
    if isinstance(taken, Wait):
        return taken
    book.count("leases")
    taken = taken.but(
        actor=args.actor, rid=rid, lapsed=False, deadline=book.now + book.settings.lease_s
    )
    return _lease(book, book.save(taken))


def put(
    book: Book, args: protocol.Put, outcomes: Sequence[Outcome], data: Sequence[Record]
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


def resolve(book: Book, args: protocol.Resolve) -> PutAck:
    """Resolve a slot without a trajectory: failed with a cause, or not triggered."""
    status: SlotStatus = "failed" if args.cause else "not_triggered"
    result = codec.encode(SlotResult(args.role, args.slot, status, cause=args.cause))
    put_args = protocol.Put(args.group_id, args.actor, None)
    return put(book, put_args, (outcome.check(result),), (result,))


def renew(book: Book, args: protocol.Renew) -> Ids:
    """Extend leases; returns the groups that are no longer this actor's."""
    check_name(args.actor, "actor")
    lost = []
    for group_id in dict.fromkeys(args.group_ids):
        entry = book.index.live.get(group_id)
        if entry is None or not entry.unfinished or entry.actor != args.actor:
            lost.append(group_id)
            continue
        book.save(entry.but(lapsed=False, deadline=book.now + book.settings.lease_s))
    return Ids(tuple(lost))


def release(book: Book, args: protocol.Release) -> Ids:
    """Give leases back at once, accepted results kept; returns the groups given back."""
    given = []
    for group_id in dict.fromkeys(args.group_ids):
        entry = book.index.live.get(group_id)
        if entry is not None and entry.unfinished and entry.actor == args.actor:
            book.save(entry.but(actor="", rid="", deadline=book.now, lapsed=False))
            given.append(group_id)
    return Ids(tuple(given))


def notice_lapsed(book: Book) -> None:
    """Count leases and draws that ran out, complete groups that waited long enough for
    stragglers, and drop abandoned groups that can never be drawn."""
    index, settings, now = book.index, book.settings, book.now
    holding.notice_expired(book)
    for entry in [*index.unfinished("eval"), *index.unfinished("train")]:
        if entry.deadline < now and entry.held:
            book.count("leases_expired")
            book.save(entry.but(lapsed=True))
    for entry in index.unfinished("train") if settings.straggler_s else ():
        if quorum(book, entry):
            give_up_stragglers(book, entry)
    oldest_useful = index.marks.version - book.max_staleness
    for entry in index.unheld("train"):
        if 0 <= entry.oldest < oldest_useful:
            book.expire(entry, "stale")


def check_name(name: str, what: str) -> None:
    """Raise RecordError unless an actor or consumer has a usable name."""
    if not 0 < len(name) <= protocol.NAME_LIMIT:
        raise RecordError(f"{what} name {name!r:.80} must have 1 to {protocol.NAME_LIMIT} letters")


# ── leases ──────────────────────────────────────────────────────────────────────────────────


def _check_plan(plan: GroupPlan) -> None:
    total = plan.base + plan.distilled
    if plan.base < 1 or plan.distilled < 0 or total > protocol.SLOTS_LIMIT:
        raise LimitExceeded(
            f"plan of {plan.base} base and {plan.distilled} distilled slots; at least one base "
            f"and at most {protocol.SLOTS_LIMIT} slots"
        )


def _lease(book: Book, entry: Entry) -> Lease:
    accepted = book.txn.parts(entry.group_id)
    return Lease(
        group_id=entry.group_id,
        task=book.txn.task(entry.purpose, entry.tag, entry.task_index),
        purpose=entry.purpose,
        tag=entry.tag,
        plan=entry.plan,
        accepted=tuple(read_result(data) for data in accepted.values()),
        deadline_s=max(0.0, entry.deadline - book.now),
    )


def _held(book: Book, purpose: Purpose) -> int:
    """Unfinished groups that an actor holds."""
    return book.index.count_unfinished(purpose) - len(book.index.unheld(purpose))


def _evaluation(book: Book, args: protocol.AskLease) -> Entry | None:
    """An abandoned evaluation group, or the next task of the first list open to this actor."""
    marks = book.index.marks
    for entry in book.index.unheld("eval"):
        if args.version >= marks.eval_min_version.get(entry.tag, 0):
            return entry
    for tag in _pending_tags(book):
        if args.version >= marks.eval_min_version.get(tag, 0):
            index = marks.eval_next.get(tag, 0)
            book.mark(eval_next=marks.eval_next | {tag: index + 1})
            return _new_group(book, "eval", tag, index, GroupPlan(base=1))
    return None


def _pending_tags(book: Book) -> list[str]:
    marks, tasks = book.index.marks, book.index.tasks
    tags = [t for p, t in tasks if p == "eval" and marks.eval_next.get(t, 0) < tasks[p, t]]
    return sorted(tags, key=lambda tag: (marks.eval_min_version.get(tag, 0), tag))


def _training(book: Book, args: protocol.AskLease) -> Entry | Wait:
    """An abandoned training group, or a new one if admission grants it."""
    index, settings = book.index, book.settings
    unheld = index.unheld("train")
    if not unheld and not index.tasks["train", ""]:
        return Wait(_nothing_to_do(book, args), RETRY_S)
    ahead = index.in_flight
    if unheld:
        ahead = ahead_of_takeover(ahead, len(unheld))
    granted = admits(
        learner=index.marks.version,
        ahead=ahead,
        per_step=settings.per_step,
        max_staleness=book.max_staleness,
        actor=args.version,
    )
    if not granted:
        return Wait(_staleness(book, args), RETRY_S)
    return unheld[0] if unheld else _next_in_cycle(book, args.plan)


def _next_in_cycle(book: Book, plan: GroupPlan) -> Entry:
    marks = book.index.marks
    epoch, position, size = marks.epoch, marks.position, marks.size
    if position >= size:
        epoch, position, size = epoch + 1, 0, book.index.tasks["train", ""]
    task = int(_order(book.settings.seed, epoch, size)[position])
    book.mark(epoch=epoch, position=position + 1, size=size)
    return _new_group(book, "train", "", task, plan)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> npt.NDArray[np.int64]:
    """The order in which an epoch leases its tasks."""
    return np.random.default_rng([seed, epoch]).permutation(size)


def _new_group(book: Book, purpose: Purpose, tag: str, task_index: int, plan: GroupPlan) -> Entry:
    task = book.txn.task(purpose, tag, task_index)
    entry = Entry(
        group_id=f"g{book.index.next_group:010d}",
        task_id=task.task_id,
        task_index=task_index,
        plan=plan,
        state="leased",
        purpose=purpose,
        tag=tag,
        times={"leased": book.now},
    )
    book.txn.add_group(entry)
    return entry


def _staleness(book: Book, args: protocol.AskLease) -> str:
    learner, limit = book.index.marks.version, book.max_staleness
    if learner - args.version > limit:
        return (
            f"staleness: actor at version {args.version}, learner at version {learner}, "
            f"limit {limit}: the actor waits for weights"
        )
    held = holding.named(book)
    return (
        f"staleness: {book.index.in_flight} groups in flight, learner at version {learner}, "
        f"actor at version {args.version}: the actor waits for the learner"
        f"{held and '; ' + held}"
    )


def _nothing_to_do(book: Book, args: protocol.AskLease) -> str:
    pending = _pending_tags(book)
    if not pending:
        return "tasks: none is left to lease; the actor waits for tasks to be added"
    needed = book.index.marks.eval_min_version.get(pending[0], 0)
    return (
        f"evaluation {pending[0]}: needs version {needed}, actor at version {args.version}: "
        "the actor waits for weights"
    )

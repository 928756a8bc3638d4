"""What actors do to the store: tasks, leases, results (DESIGN §3).

Every verb takes a Book and its arguments, checks everything, then changes the Book. An error
leaves no trace.
"""

from __future__ import annotations

from buffer.groups import draw_deadlines
from buffer.groups.admission import admits, ahead_of_takeover
from buffer.groups.results import give_up_stragglers, quorum
from buffer.groups.tasks import new_group, next_in_cycle, pending_tags
from buffer.groups.unit_of_work import Book
from buffer.storage.rows import Entry
from buffer.storage.transaction import read_result
from buffer.wire import messages
from buffer.wire.messages import Ids, Lease, Wait
from r3l.errors import LimitExceeded, RecordError
from r3l.records import GroupPlan, Purpose

RETRY_S = 0.25
FULL_RETRY_S = 2.0


def lease(book: Book, args: messages.AskLease, rid: str) -> Lease | Wait:
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


def renew(book: Book, args: messages.Renew) -> Ids:
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


def release(book: Book, args: messages.Release) -> Ids:
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
    draw_deadlines.notice_expired(book)
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
    if not 0 < len(name) <= messages.NAME_LIMIT:
        raise RecordError(f"{what} name {name!r:.80} must have 1 to {messages.NAME_LIMIT} letters")


# ── leases ──────────────────────────────────────────────────────────────────────────────────


def _check_plan(plan: GroupPlan) -> None:
    total = plan.base + plan.distilled
    if plan.base < 1 or plan.distilled < 0 or total > messages.SLOTS_LIMIT:
        raise LimitExceeded(
            f"plan of {plan.base} base and {plan.distilled} distilled slots; at least one base "
            f"and at most {messages.SLOTS_LIMIT} slots"
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


def _evaluation(book: Book, args: messages.AskLease) -> Entry | None:
    """An abandoned evaluation group, or the next task of the first list open to this actor."""
    marks = book.index.marks
    for entry in book.index.unheld("eval"):
        if args.version >= marks.eval_min_version.get(entry.tag, 0):
            return entry
    for tag in pending_tags(book):
        if args.version >= marks.eval_min_version.get(tag, 0):
            index = marks.eval_next.get(tag, 0)
            book.mark(eval_next=marks.eval_next | {tag: index + 1})
            return new_group(book, "eval", tag, index, GroupPlan(base=1))
    return None


def _training(book: Book, args: messages.AskLease) -> Entry | Wait:
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
    return unheld[0] if unheld else next_in_cycle(book, args.plan)


def _staleness(book: Book, args: messages.AskLease) -> str:
    learner, limit = book.index.marks.version, book.max_staleness
    if learner - args.version > limit:
        return (
            f"staleness: actor at version {args.version}, learner at version {learner}, "
            f"limit {limit}: the actor waits for weights"
        )
    held = draw_deadlines.named(book)
    return (
        f"staleness: {book.index.in_flight} groups in flight, learner at version {learner}, "
        f"actor at version {args.version}: the actor waits for the learner"
        f"{held and '; ' + held}"
    )


def _nothing_to_do(book: Book, args: messages.AskLease) -> str:
    pending = pending_tags(book)
    if not pending:
        return "tasks: none is left to lease; the actor waits for tasks to be added"
    needed = book.index.marks.eval_min_version.get(pending[0], 0)
    return (
        f"evaluation {pending[0]}: needs version {needed}, actor at version {args.version}: "
        "the actor waits for weights"
    )

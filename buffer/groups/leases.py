"""What actors do to the store: tasks, leases, results (DESIGN §3).

Every operation takes a unit of work and its arguments, checks everything, then changes the store.
An error leaves no trace.
"""

from __future__ import annotations

from buffer.groups import draw_deadlines
from buffer.groups.admission import admits, ahead_of_takeover
from buffer.groups.results import give_up_stragglers, quorum
from buffer.groups.tasks import new_group, next_in_cycle, pending_tags
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.rows import GroupRow
from buffer.storage.transaction import read_result
from buffer.wire import messages
from buffer.wire.messages import Ids, Lease, Wait
from r3l.errors import LimitExceeded, RecordError
from r3l.records import GroupPlan, Purpose

RETRY_S = 0.25
FULL_RETRY_S = 2.0


def lease(work: UnitOfWork, args: messages.AskLease, rid: str) -> Lease | Wait:
    """Give the actor a group, abandoned groups before new ones.

    Evaluation and training take turns while both have work: as many groups of each are held, so
    that an evaluation is soon done and generation for training goes on meanwhile.
    """
    check_name(args.actor, "actor")
    _check_plan(args.plan)
    answered = work.index.lease_rids.get(rid)
    if answered is not None:
        return _lease(work, work.index.live[answered])
    if work.full:
        return Wait(f"the store is full: {work.full}; actors wait for space", FULL_RETRY_S)
    expire_overdue(work)
    if _held(work, "eval") <= _held(work, "train"):
        taken = _evaluation(work, args) or _training(work, args)
    else:
        taken = _training(work, args)
        if isinstance(taken, Wait):
            taken = _evaluation(work, args) or taken
    if isinstance(taken, Wait):
        return taken
    work.count("leases")
    taken = taken.but(
        actor=args.actor, rid=rid, lease_expired=False, deadline=work.now + work.config.lease_s
    )
    return _lease(work, work.save(taken, "lease"))


def renew(work: UnitOfWork, args: messages.Renew) -> Ids:
    """Extend leases; returns the groups that are no longer this actor's."""
    check_name(args.actor, "actor")
    lost = []
    for group_id in dict.fromkeys(args.group_ids):
        row = work.index.live.get(group_id)
        if row is None or not row.unfinished or row.actor != args.actor:
            lost.append(group_id)
            continue
        renewed = row.but(lease_expired=False, deadline=work.now + work.config.lease_s)
        work.save(renewed, "renew")
    return Ids(tuple(lost))


def release(work: UnitOfWork, args: messages.Release) -> Ids:
    """Give leases back at once, accepted results kept; returns the groups given back."""
    given = []
    for group_id in dict.fromkeys(args.group_ids):
        row = work.index.live.get(group_id)
        if row is not None and row.unfinished and row.actor == args.actor:
            released = row.but(actor="", rid="", deadline=work.now, lease_expired=False)
            work.save(released, "release")
            given.append(group_id)
    return Ids(tuple(given))


def expire_overdue(work: UnitOfWork) -> None:
    """Count leases and draws that ran out, complete groups that waited long enough for
    stragglers, and drop abandoned groups that can never be drawn."""
    index, now = work.index, work.now
    draw_deadlines.expire_overdue(work)
    for row in [*index.unfinished("eval"), *index.unfinished("train")]:
        if row.deadline < now and row.held:
            work.count("leases_expired")
            work.save(row.but(lease_expired=True), "clock")
    for row in index.unfinished("train") if work.config.straggler_s else ():
        if quorum(work, row):
            give_up_stragglers(work, row)
    oldest_useful = index.progress.version - work.max_staleness
    for row in index.unheld("train"):
        if 0 <= row.oldest < oldest_useful:
            work.expire(row, "stale", "clock")


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


def _lease(work: UnitOfWork, row: GroupRow) -> Lease:
    accepted = work.txn.parts(row.group_id)
    return Lease(
        group_id=row.group_id,
        task=work.txn.task(row.purpose, row.tag, row.task_index),
        purpose=row.purpose,
        tag=row.tag,
        plan=row.plan,
        accepted=tuple(read_result(data) for data in accepted.values()),
        deadline_s=max(0.0, row.deadline - work.now),
    )


def _held(work: UnitOfWork, purpose: Purpose) -> int:
    """Unfinished groups that an actor holds."""
    return work.index.count_unfinished(purpose) - len(work.index.unheld(purpose))


def _evaluation(work: UnitOfWork, args: messages.AskLease) -> GroupRow | None:
    """An abandoned evaluation group, or the next task of the first list open to this actor."""
    progress = work.index.progress
    for row in work.index.unheld("eval"):
        if args.version >= progress.eval_min_version.get(row.tag, 0):
            return row
    for tag in pending_tags(work):
        if args.version >= progress.eval_min_version.get(tag, 0):
            index = progress.eval_next.get(tag, 0)
            work.update_progress(eval_next=progress.eval_next | {tag: index + 1})
            return new_group(work, "eval", tag, index, GroupPlan(base=1))
    return None


def _training(work: UnitOfWork, args: messages.AskLease) -> GroupRow | Wait:
    """An abandoned training group, or a new one if admission grants it."""
    index = work.index
    unheld = index.unheld("train")
    if not unheld and not index.tasks["train", ""]:
        return Wait(_nothing_to_do(work, args), RETRY_S)
    ahead = index.in_flight
    if unheld:
        ahead = ahead_of_takeover(ahead, len(unheld))
    granted = admits(
        learner=index.progress.version,
        ahead=ahead,
        per_step=work.groups_per_step,
        max_staleness=work.max_staleness,
        actor=args.version,
    )
    if not granted:
        return Wait(_staleness(work, args), RETRY_S)
    return unheld[0] if unheld else next_in_cycle(work, args.plan)


def _staleness(work: UnitOfWork, args: messages.AskLease) -> str:
    learner, limit = work.index.progress.version, work.max_staleness
    if learner - args.version > limit:
        return (
            f"staleness: actor at version {args.version}, learner at version {learner}, "
            f"limit {limit}: the actor waits for weights"
        )
    held = draw_deadlines.describe_holders(work)
    return (
        f"staleness: {work.index.in_flight} groups in flight, learner at version {learner}, "
        f"actor at version {args.version}: the actor waits for the learner"
        f"{held and '; ' + held}"
    )


def _nothing_to_do(work: UnitOfWork, args: messages.AskLease) -> str:
    pending = pending_tags(work)
    if not pending:
        return "tasks: none is left to lease; the actor waits for tasks to be added"
    needed = work.index.progress.eval_min_version.get(pending[0], 0)
    return (
        f"evaluation {pending[0]}: needs version {needed}, actor at version {args.version}: "
        "the actor waits for weights"
    )

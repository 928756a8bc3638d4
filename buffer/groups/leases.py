"""Leases: an actor leases a group to fill, renews the lease, or releases it.

An operation checks everything before it changes the store, so a refused operation leaves no trace.
"""

from itertools import chain

from buffer.groups import draw_deadlines
from buffer.groups.learner_version import check_version
from buffer.groups.progress import partial_results
from buffer.groups.staleness import may_start, oldest_fresh
from buffer.groups.tasks import (
    check_plan,
    handed_attempts,
    in_store,
    new_group,
    next_in_cycle,
    pending_tags,
)
from buffer.groups.unit_of_work import UnitOfWork
from buffer.indexes.index import Index
from buffer.storage.stored_rows import GroupRow
from buffer.storage.transaction import Txn
from buffer.wire import operations
from buffer.wire.operations import Ids, Lease, Wait
from r3l import codec
from r3l.errors import RecordError
from r3l.records import GroupPlan, Purpose, ReflectionRecord, SlotResult

RETRY_S = 0.25
FULL_RETRY_S = 2.0
SILENT_S = 10.0
"""Seconds without a renewal after which an actor may be dead. A live actor renews every 2 s."""


def lease(work: UnitOfWork, args: operations.AcquireLease, rid: str) -> Lease | Wait:
    """Leases an unheld or new group to the actor, or returns a Wait with the reason.

    While evaluation and training both have work, actors hold about equally many groups of each.
    Before the first step, training comes first (_first_step). If an actor would have to wait, it
    takes over a group of a silent actor.
    """
    check_name(args.actor, "actor")
    check_version(work, args.version)
    if args.plan is not None:
        check_plan(args.plan)
    leased = work.index.lease_rids.get(rid)
    if leased is not None:
        return _lease(work, work.index.live[leased])
    if work.full:
        return Wait(f"the store is full: {work.full}; actors wait for space", FULL_RETRY_S)
    expire_overdue(work)
    if not _first_step(work) and _count_held(work, "eval") <= _count_held(work, "train"):
        row = _evaluation(work, args) or _training(work, args)
    else:
        row = _training(work, args)
        if isinstance(row, Wait):
            row = _evaluation(work, args) or row
    if isinstance(row, Wait) and _expire_silent(work):
        row = _evaluation(work, args) or _training(work, args)
    if isinstance(row, Wait):
        return row
    work.count("leases")
    row = row.with_changes(
        actor=args.actor, rid=rid, lease_expired=False, deadline=work.now + work.config.lease_s
    )
    return _lease(work, work.save(row, "lease"))


def outlook(index: Index, per_step: int) -> object:
    """Returns the facts, other than the time, that decide whether a lease is refused. While they
    stay the same and no lease runs out, a refused request would be refused again."""
    unfinished = index.unfinished.values()
    return (
        index.progress.version,
        index.in_flight // per_step,
        index.counts["group/train/expired"],
        len(index.draws),
        sum(index.tasks.values()),
        *(each.unheld for each in unfinished),
    )


def renew(work: UnitOfWork, args: operations.Renew) -> Ids:
    """Extends leases. Returns the groups that this actor no longer holds."""
    check_name(args.actor, "actor")
    lost = []
    for group_id in dict.fromkeys(args.group_ids):
        row = work.index.live.get(group_id)
        if row is None or not row.unfinished or row.actor != args.actor:
            lost.append(group_id)
            continue
        renewed = row.with_changes(lease_expired=False, deadline=work.now + work.config.lease_s)
        work.save(renewed, "renew")
    return Ids(tuple(lost))


def release(work: UnitOfWork, args: operations.Release) -> Ids:
    """Ends leases early. Returns the released groups. Accepted results stay."""
    check_name(args.actor, "actor")
    released = []
    for group_id in dict.fromkeys(args.group_ids):
        row = work.index.live.get(group_id)
        if row is not None and row.unfinished and row.actor == args.actor:
            free = row.with_changes(actor="", rid="", deadline=work.now, lease_expired=False)
            work.save(free, "release")
            released.append(group_id)
    return Ids(tuple(released))


def extend(work: UnitOfWork, seconds: float) -> None:
    """Prolongs all leases and all draws. `seconds`: how long the service stood still."""
    index = work.index
    for row in chain(*index.unfinished.values()):
        if row.has_holder:
            work.save(row.with_changes(deadline=row.deadline + seconds), "clock")
    index.last_seen = {name: at + seconds for name, at in index.last_seen.items()}


def expire_overdue(work: UnitOfWork) -> None:
    """Expires overdue draws and leases. Then expires unheld training groups that are too old to be
    drawn."""
    index = work.index
    draw_deadlines.expire_overdue(work)
    _expire_leases(work, work.now)
    oldest = oldest_fresh(learner=index.progress.version, limit=work.config.max_staleness)
    for row in index.unfinished["train"].unheld_older_than(oldest):
        work.expire(row, "stale", "clock")


def _expire_leases(work: UnitOfWork, before: float) -> bool:
    """Expires leases whose deadline is earlier than time `before`. Returns whether any expired."""
    unfinished = work.index.unfinished
    overdue = [*unfinished["eval"].due_before(before), *unfinished["train"].due_before(before)]
    for row in overdue:
        work.count("leases_expired")
        work.save(row.with_changes(lease_expired=True), "clock")
    return bool(overdue)


def _expire_silent(work: UnitOfWork) -> bool:
    """Expires leases that were not renewed for max(SILENT_S, lease_s / 4) seconds. Returns whether
    any expired."""
    lease_s = work.config.lease_s
    return _expire_leases(work, work.now + lease_s - max(SILENT_S, lease_s / 4))


def check_name(name: str, what: str) -> None:
    """Raises RecordError unless a name is printable and has 1 to NAME_LIMIT characters."""
    if not 0 < len(name) <= operations.NAME_LIMIT or not name.isprintable():
        raise RecordError(
            f"{what} {name!r:.80}: must have 1 to {operations.NAME_LIMIT} characters, all of them "
            "printable"
        )


def hands_archived(txn: Txn, plan: GroupPlan) -> bool:
    """Whether archived attempts come with a plan. If so, `lease` leaves `handed` empty, since
    reading them may take long."""
    return len(in_store(txn, plan.handed)) < len(plan.handed)


def _lease(work: UnitOfWork, row: GroupRow) -> Lease:
    parts = work.txn.parts(row.group_id)
    quick = not hands_archived(work.txn, row.plan)
    return Lease(
        group_id=row.group_id,
        task=work.txn.task(row.purpose, row.tag, row.task_index),
        purpose=row.purpose,
        tag=row.tag,
        plan=row.plan,
        accepted=tuple(codec.decode(SlotResult, data) for data in parts.results.values()),
        deadline_s=max(0.0, row.deadline - work.now),
        partial=partial_results(work, row),
        reflections=tuple(
            codec.decode(ReflectionRecord, data) for data in parts.reflections.values()
        ),
        handed=handed_attempts(work.txn, row.group_id, row.plan.handed) if quick else (),
    )


def _count_held(work: UnitOfWork, purpose: Purpose) -> int:
    """Counts unfinished groups whose lease was renewed in the last SILENT_S seconds."""
    since = work.now + work.config.lease_s - SILENT_S
    return work.index.unfinished[purpose].due_from(since)


def _evaluation(work: UnitOfWork, args: operations.AcquireLease) -> GroupRow | None:
    """Returns an unheld evaluation group, else a new one, else None. Skips evaluations that need a
    newer version than the actor has."""
    progress = work.index.progress
    allowed = [
        row
        for tag, row in work.index.unfinished["eval"].unheld_tags()
        if args.version >= progress.eval_min_version.get(tag, 0)
    ]
    if allowed:
        return min(allowed, key=lambda row: row.group_id)
    for tag in pending_tags(work):
        if args.version >= progress.eval_min_version.get(tag, 0):
            index = progress.eval_next.get(tag, 0)
            work.update_progress(eval_next=progress.eval_next | {tag: index + 1})
            return new_group(work, "eval", tag, index, GroupPlan(1))
    return None


def _training(work: UnitOfWork, args: operations.AcquireLease) -> GroupRow | Wait:
    """Returns an unheld training group, else a new one, else a Wait with the reason."""
    index = work.index
    unfinished = index.unfinished["train"]
    first = unfinished.first_unheld()
    if first is None and not index.tasks["train", ""]:
        return _no_task(work, args)
    if _first_step(work) and _count_held(work, "train") >= work.groups_per_step:
        return Wait("the first step: its groups are being generated", RETRY_S)
    ahead = _ahead(work) - unfinished.unheld  # those cannot be finished before they are taken over
    granted = may_start(
        learner=index.progress.version,
        ahead=ahead,
        per_step=_fresh_per_step(work),
        max_staleness=work.config.max_staleness,
        actor=args.version,
    )
    if not granted:
        return _not_admitted(work, args)
    return first or next_in_cycle(work, args.plan)


def _first_step(work: UnitOfWork) -> bool:
    """True while a learner waits for its first step and no training group has expired."""
    index, progress = work.index, work.index.progress
    waits = progress.has_learner and not progress.version
    # After an expiry, the step may need many more groups than groups_per_step.
    return waits and not index.counts["group/train/expired"]


def _fresh_per_step(work: UnitOfWork) -> int:
    """Returns how many new groups the next batch takes."""
    whole = work.groups_per_step
    if work.config.sampler.replay_no_contrast:  # places are left after the groups were sampled
        return whole
    return whole - (work.index.replayed_in(whole) or 0)


def _ahead(work: UnitOfWork) -> int:
    """Counts training groups in flight. Of the drawn groups, counts only those that the learner
    drew. Without the unheld groups, the count is `I` in buffer.groups.staleness."""
    held = draw_deadlines.held_by(work.index.draws)
    return work.index.in_flight - sum(n for name, n in held.items() if name != operations.LEARNER)


def _not_admitted(work: UnitOfWork, args: operations.AcquireLease) -> Wait:
    learner, limit = work.index.progress.version, work.config.max_staleness
    if learner - args.version > limit:
        return Wait(
            f"staleness: actor at version {args.version}, learner at version {learner}, "
            f"limit {limit}: the actor waits for weights",
            RETRY_S,
            for_weights=True,
        )
    held = draw_deadlines.describe_holders(work)
    return Wait(
        f"staleness: {_ahead(work)} groups in flight, learner at version {learner}, "
        f"actor at version {args.version}: the actor waits for the learner"
        f"{held and '; ' + held}",
        RETRY_S,
    )


def _no_task(work: UnitOfWork, args: operations.AcquireLease) -> Wait:
    pending = pending_tags(work)
    if not pending:
        return Wait("tasks: all are leased; the actor waits for new tasks", RETRY_S)
    needed = work.index.progress.eval_min_version.get(pending[0], 0)
    return Wait(
        f"evaluation {pending[0]}: needs version {needed}, actor at version {args.version}: "
        "the actor waits for weights",
        RETRY_S,
        for_weights=True,
    )

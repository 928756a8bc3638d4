"""Draws: a consumer gets a batch of complete groups, then commits, releases or discards it."""

from collections.abc import Sequence

from msgspec.structs import replace

from buffer.groups import draw_deadlines
from buffer.groups.completion import (
    REPLACED_BATCHES,
    expire_refused,
    facts_of,
    refusal,
)
from buffer.groups.leases import check_name
from buffer.groups.staleness import oldest_fresh
from buffer.groups.unit_of_work import UnitOfWork
from buffer.sampling import samplers, task_history
from buffer.sampling.samplers import Pick
from buffer.sampling.timed_worker import Ask
from buffer.storage import counts
from buffer.storage.counts import under
from buffer.storage.stored_rows import DrawRow, GroupRow, LedgerRow, RecalledRow
from buffer.wire import operations
from buffer.wire.operations import Amount
from r3l.algorithms.facts import StoredAttempt
from r3l.errors import Conflict, DrawExpired, LimitExceeded, NotFound, RecordError, UserError
from r3l.notices import notice_again
from r3l.records import LARGEST_REWARD, check_cause

MANY = 0.1
"""If this share of the groups or more is stale, the user gets a notice."""
DAMAGED = "damaged"
"""Cause of a group whose record does not match its checksum."""


def draw(work: UnitOfWork, args: operations.DrawGroups, rid: str) -> DrawRow | None:
    """Marks `count` groups as drawn. Returns None if there are too few.

    Limits the age of new groups (`max_staleness`) and of replayed groups (`replay_limit`). If this
    consumer gave back a draw with the same `count` and `version`, and all its groups can be drawn,
    repeats that draw. So a resumed learner repeats its steps. Raises Conflict if `version` exceeds
    the learner's version by more than 1. Raises LimitExceeded if the consumer would hold more
    groups than a learner can use.
    """
    _check_draw(work, args)
    draw_deadlines.extend(work, args.consumer)
    drawn_before = work.index.draw_rids.get(rid)
    if drawn_before is not None:
        return work.index.draws[drawn_before]
    draw_deadlines.expire_overdue(work)
    _check_share(work, args)
    _expire_unusable(work, args.version)
    chosen = _choose(work, args)
    return None if chosen is None else _hand_out(work, args, rid, chosen)


def shortage(work: UnitOfWork, args: operations.DrawGroups) -> str:
    """Explains why there are too few groups for a draw."""
    index = work.index
    ready = index.ready(args.count)
    resting = index.drawable.resting
    unfinished, unheld = len(index.unfinished["train"]), index.unfinished["train"].unheld
    stale = index.counts["drop/group/stale"]
    parts = [f"{ready} of {args.count} groups are ready"]
    if not index.tasks["train", ""]:
        parts.append("no training task is registered")
    elif unfinished > unheld:
        parts.append(f"waits for actors to finish {unfinished - unheld}")
    else:
        parts.append("waits for actors, which hold no group")
    if unheld:
        parts.append(f"{unheld} unfinished groups have no actor")
    if resting:
        cooldown = work.config.sampler.cooldown
        parts.append(f"{resting} trained groups rest between draws (cooldown {cooldown})")
    if work.full:
        parts.append(f"the store is full: {work.full}")
    if held := draw_deadlines.describe_holders(work):
        parts.append(held)
    if stale:
        parts.append(f"{stale} expired as stale so far (max_staleness {work.config.max_staleness})")
    for cause, count in sorted(under(index.counts, "replaced").items()):
        parts.append(f"{count} were replaced so far ({cause})")
    return "; ".join(parts)


def release_draws(work: UnitOfWork, args: operations.ReleaseDraws) -> Amount:
    """Makes the uncommitted groups of a consumer drawable again and returns their number."""
    return Amount(draw_deadlines.return_draws(work, args.consumer, "release_draws"))


def commit(work: UnitOfWork, args: operations.Commit) -> Amount:
    """Marks a draw as trained in a step. Raises DrawExpired if the draw has expired and one of its
    groups is no longer free (draw_deadlines.is_free)."""
    drawn = _find(work, args.draw_id)
    if drawn.outcome == "trained" and drawn.step == args.step:
        return Amount(len(drawn.groups))
    draw_deadlines.extend(work, drawn.consumer)
    if drawn.outcome == "expired":
        _check_free(work, drawn)
    elif drawn.outcome != "open":
        at = f" in step {drawn.step}" if drawn.outcome == "trained" else ""
        raise Conflict(f"draw {args.draw_id} was {drawn.outcome}{at}; it cannot be committed")
    if stray := {attempt.into for attempt in args.attempts} - set(drawn.groups):
        raise RecordError(f"draw {args.draw_id}: has no group {min(stray)!r:.80}", field="attempts")
    trained = work.txn.step(args.step)
    if trained is not None:
        raise Conflict(f"step {args.step} was already trained on draw {trained.draw_id}")
    for group_id in drawn.groups:
        row = work.row(group_id)
        steps = (*row.steps, args.step)
        work.move(row, "trained", "commit", steps=steps, draw_id=drawn.draw_id)
    work.save_draw(replace(drawn, outcome="trained", step=args.step))
    work.txn.put_step(
        LedgerRow(
            args.step, drawn.draw_id, args.version, drawn.groups, work.now, tuple(args.attempts)
        )
    )
    work.count("trained", len(drawn.groups))
    newest = max(args.version, work.index.progress.version)  # another learner may be ahead
    work.update_progress(version=newest)
    return Amount(len(drawn.groups))


def discard(work: UnitOfWork, args: operations.Discard) -> Amount:
    """Expires the groups of a draw, and returns their number. If the draw has timed out, skips the
    groups that are no longer free (draw_deadlines.is_free)."""
    check_name(args.cause, "cause")
    check_cause(args.cause)
    drawn = _find(work, args.draw_id)
    if drawn.outcome == "discarded":
        return Amount(len(drawn.groups))
    if drawn.outcome not in ("open", "expired"):
        raise Conflict(f"draw {args.draw_id} was {drawn.outcome}; it cannot be discarded")
    draw_deadlines.extend(work, drawn.consumer)
    groups = drawn.groups
    if drawn.outcome == "expired":
        groups = tuple(group_id for group_id in groups if draw_deadlines.is_free(work, group_id))
    for group_id in groups:
        work.expire(work.row(group_id), args.cause, "discard")
    work.save_draw(replace(drawn, outcome="discarded"))
    return Amount(len(groups))


def update_priorities(work: UnitOfWork, args: operations.UpdatePriorities) -> Amount:
    """Sets the priorities of groups, for the sampler. Returns how many were set. Leaves out groups
    that expired or were evicted. Raises NotFound for a group that never existed, RecordError for an
    invalid priority; then none is set."""
    if len(args.priorities) > operations.GROUPS_LIMIT:
        raise LimitExceeded(
            f"{len(args.priorities)} priorities: at most {operations.GROUPS_LIMIT} in one request"
        )
    rows = list[tuple[GroupRow, float]]()
    for group_id, priority in args.priorities.items():
        if not 0 <= priority <= LARGEST_REWARD:  # NaN is not
            raise RecordError(
                f"priority {priority} of group {group_id!r:.80}: must be from 0 to "
                f"{LARGEST_REWARD:g}",
                field="priorities",
            )
        row = work.find(group_id)
        if row is None and work.txn.evicted(group_id):
            continue
        row = row or work.row(group_id)
        if row.purpose != "train":
            raise NotFound(f"group {group_id} belongs to an evaluation, which no sampler picks")
        if row.state != "expired":
            rows.append((row, priority))
    for row, priority in rows:
        work.save(row.with_changes(priority=priority), "update_priorities")
    return Amount(len(rows))


def _find(work: UnitOfWork, draw_id: int) -> DrawRow:
    drawn = work.txn.draw(draw_id)
    if drawn is None:
        raise NotFound(f"there is no draw {draw_id}")
    return drawn


def _check_draw(work: UnitOfWork, args: operations.DrawGroups) -> None:
    check_name(args.consumer, "consumer")
    most = min(_most_held(work), operations.GROUPS_LIMIT)
    if not 1 <= args.count <= most:
        raise LimitExceeded(
            f"draw of {args.count} groups: a draw may have 1 to {most} groups "
            f"(learner.groups_per_step {work.groups_per_step}, "
            f"buffer.max_staleness {work.config.max_staleness}); draw no more, or start the "
            "service with the settings of its learner",
            limit=most,
        )
    known = work.index.progress.version
    if args.version > known + 1:
        raise Conflict(
            f"draw at version {args.version}: the learner is at version {known}, so draws may go "
            f"up to version {known + 1}; commit the missing steps, or call set_version with "
            f"version {args.version}"
        )


def _check_share(work: UnitOfWork, args: operations.DrawGroups) -> None:
    """Raises LimitExceeded if the consumer would hold more groups than a learner can use."""
    held = draw_deadlines.held_by(work.index.draws).get(args.consumer, 0)
    if held + args.count > (most := _most_held(work)):
        raise LimitExceeded(
            f"draw of {args.count} groups: {args.consumer!r:.80} already holds {held} groups, and "
            f"its limit is {most}; commit, discard or release its draws first",
            limit=most,
        )


def _most_held(work: UnitOfWork) -> int:
    """Returns how many groups a consumer may hold: as many as a learner can use."""
    return work.groups_per_step * (work.config.max_staleness + 1)


def _choose(work: UnitOfWork, args: operations.DrawGroups) -> DrawRow | None:
    """Chooses a draw that was given back if its groups can be drawn. Otherwise lets the sampler
    pick. Drops damaged groups and chooses again. Returns None if there are too few groups."""
    before = _given_back(work, args)
    while before is not None or work.index.ready(args.count) >= args.count:
        drawable = work.index.drawable
        if before and len(before.groups) == args.count and all(map(drawable.find, before.groups)):
            chosen: DrawRow | None = before
        else:
            chosen = _pick(work, args)
        rows = map(drawable.find, chosen.groups if chosen else ())
        if chosen is None or not _drop_damaged(work, [row for row in rows if row]):
            return chosen
    return None


def _given_back(work: UnitOfWork, args: operations.DrawGroups) -> DrawRow | None:
    """Returns the last draw of this consumer and version, if it was given back."""
    return work.index.returned.get((args.consumer, args.version))


def _pick(work: UnitOfWork, args: operations.DrawGroups) -> DrawRow | None:
    """Lets the sampler pick. Returns a draw without a number."""
    picks = sorted(_sample(work, args), key=lambda pick: pick.row.group_id)
    if not picks:
        return None
    return DrawRow(
        draw_id=0,
        rid="",
        consumer=args.consumer,
        version=args.version,
        groups=tuple(pick.row.group_id for pick in picks),
        sampler=work.config.sampler.name,
        when=work.now,
        probabilities=tuple(pick.probability for pick in picks),
        weights=tuple(pick.weight for pick in picks),
    )


def _drop_damaged(work: UnitOfWork, rows: Sequence[GroupRow]) -> bool:
    """Drops those of the groups whose record is damaged. Returns whether there were any."""
    damaged = [row for row in rows if not work.txn.record_is_sound(row)]
    for row in damaged:
        if row.state == "complete":
            work.expire(row, DAMAGED, "draw")
        else:
            work.index.forget_replay(row)
    return bool(damaged)


def _hand_out(work: UnitOfWork, args: operations.DrawGroups, rid: str, chosen: DrawRow) -> DrawRow:
    """Marks the groups of a chosen draw as drawn, and saves the draw under a new number."""
    draw_id, groups = work.index.next_draw, [work.row(group_id) for group_id in chosen.groups]
    for row in groups:
        work.move(row, "drawn", "draw", draw_id=draw_id)
    is_new = not chosen.draw_id
    drawn = replace(
        chosen,
        draw_id=draw_id,
        rid=rid,
        when=work.now,
        outcome="open",
        step=-1,
        replaced=_take_replaced(work, _given_back(work, args)),
        recalled=_recall(work, groups, args.version) if is_new else chosen.recalled,
        replayed=tuple(row.group_id for row in groups if not row.is_fresh),
    )
    work.save_draw(drawn)
    work.count("draws")
    work.count("drawn_groups", args.count)
    return drawn


def _sample(work: UnitOfWork, args: operations.DrawGroups) -> list[Pick]:
    """Lets the sampler pick. Returns [] if there are too few groups."""
    # Seeded by version, since the draw's number differs after a learner was killed.
    source = samplers.random_source(work.seed, args.version)
    again, drawable = work.index.replayed_in(args.count), work.index.drawable
    if again is None:
        parts = [(drawable.ready, args.count)]
    else:
        parts = [(drawable.fresh, args.count - again), (drawable.rested, again)]
    if any(len(rows) < count for rows, count in parts):
        return []
    sampler = work.sampler
    try:
        picks = [p for rows, count in parts if count for p in sampler.pick(rows, count, source)]
        state = sampler.saved()
    except UserError:
        work.forget_sampler()
        raise
    if state is not None:
        work.txn.put_sampler_state(state)
    return picks


def _take_replaced(work: UnitOfWork, before: DrawRow | None) -> tuple[str, ...]:
    """Returns the groups in `before.replaced`, then the groups replaced since the last draw. If
    there are too many groups, leaves out the oldest."""
    replaced = (*(before.replaced if before else ()), *work.index.progress.replaced)
    if work.index.progress.replaced:
        work.update_progress(replaced=())
    return replaced[-REPLACED_BATCHES * work.groups_per_step :]


def _recall(work: UnitOfWork, rows: Sequence[GroupRow], version: int) -> tuple[RecalledRow, ...]:
    """Lets the algorithm choose stored attempts that join the drawn groups."""
    return tuple(recalled for row in rows for recalled in _recalled_into(work, row, version))


def _recalled_into(work: UnitOfWork, row: GroupRow, version: int) -> tuple[RecalledRow, ...]:
    closed, imported = work.index.progress.closed, work.config.recall_imported
    source = samplers.random_source(work.seed, version, int(row.group_id[1:]))
    facts = facts_of(row, version)

    def decide(ask: Ask) -> tuple[StoredAttempt, ...]:
        def read() -> list[StoredAttempt]:
            task, own = row.task_id, row.group_id
            history = task_history.attempts(
                work.txn, task, excluded=own, waiting=closed, imported=imported
            )
            return list(history)

        history = task_history.StoredHistory(lambda: ask(read))
        return tuple(work.algorithm.recalls(facts, history, source))

    def check(recalled: tuple[StoredAttempt, ...]) -> tuple[RecalledRow, ...]:
        """Raises ValueError for attempts that are not in the history."""
        for attempt in recalled:
            if not isinstance(attempt, StoredAttempt) or not task_history.holds(
                work.txn, row.task_id, attempt.group_id, attempt.slot,
                excluded=row.group_id, waiting=closed, imported=imported,
            ):  # fmt: skip
                raise ValueError(f"it returned {attempt!r:.200}; return attempts of the history")
        return tuple(
            RecalledRow(row.group_id, attempt.group_id, int(attempt.slot)) for attempt in recalled
        )

    return work.decide("recalls", decide, check, ())


def _expire_unusable(work: UnitOfWork, version: int) -> None:
    """Looks for groups that are too old, or that the algorithm refuses. If they are untrained,
    expires them. If they are trained, only stops drawing them."""
    drawable = work.index.drawable
    fresh = oldest_fresh(learner=version, limit=work.config.max_staleness)
    for row in drawable.complete_older_than(fresh):
        work.expire(row, "stale", "draw")
        _warn_of_age(work)
    fresh = oldest_fresh(learner=version, limit=work.config.replay_limit)
    for row in drawable.replays_older_than(fresh):
        work.index.forget_replay(row)
    if not work.calls.overrides("admits"):
        return
    for row in drawable.unasked():
        if cause := refusal(work, row):
            if row.state == "complete":
                expire_refused(work, row, cause, "draw")
            else:
                work.index.forget_replay(row)


def _warn_of_age(work: UnitOfWork) -> None:
    """Tells the user if groups that are trained again keep many new ones waiting for too long."""
    sampler, share = work.config.sampler, counts.stale_share(work.index.counts)
    if sampler.reuse > 1 and sampler.replay_share is None and share >= MANY:
        notice_again(
            "died of age",
            f"{share:.0%} of the groups were too old before a step trained on them: with "
            f"buffer.sampler.reuse={sampler.reuse} they compete with trained ones for every place; "
            "set buffer.sampler.replay_share, or raise buffer.max_staleness",
        )


def _check_free(work: UnitOfWork, drawn: DrawRow) -> None:
    """Raises DrawExpired if a group of `drawn`, an expired draw, is no longer free."""
    taken = [group_id for group_id in drawn.groups if not draw_deadlines.is_free(work, group_id)]
    if taken:
        raise DrawExpired(
            f"draw {drawn.draw_id} of {drawn.consumer!r:.80} expired after "
            f"{work.config.draw_s:.0f} s without a request; since then {len(taken)} of its "
            f"{len(drawn.groups)} groups were drawn again or removed, for example {taken[0]}; "
            "raise buffer.draw_s if steps take longer",
            draw_id=drawn.draw_id,
        )

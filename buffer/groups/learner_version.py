"""The learner's version: what it may go back to and how stale a group may be."""

from __future__ import annotations

from msgspec.structs import replace

from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.rows import DrawRow
from buffer.wire import messages
from buffer.wire.messages import Amount
from r3l.errors import RecordError


def limit_staleness(work: UnitOfWork, args: messages.LimitStaleness) -> Amount:
    """Lower max_staleness, from now on and after a restart; returns the one that holds."""
    if args.max_staleness < 0:
        raise RecordError(f"max_staleness {args.max_staleness} is negative", field="max_staleness")
    work.update_progress(staleness_limit=args.max_staleness)
    return Amount(work.max_staleness)


def set_version(work: UnitOfWork, args: messages.SetVersion) -> Amount:
    """Take the version a learner starts from, and forget the steps it does not remember.

    A learner that resumes from an older checkpoint has lost the steps after it: their groups
    become drawable again and leave the ledger, so that every group is trained once in the run
    that the ledger describes. Returns how many groups.
    """
    if args.version < 0:
        raise RecordError(f"version {args.version} is negative", field="version")
    given = 0
    for row in list(work.txn.steps_after(args.version)):
        drawn = work.txn.draw(row.draw_id)
        if drawn is not None:
            given += _untrain(work, drawn)
            work.save_draw(replace(drawn, outcome="rewound"))
        work.txn.delete_step(row.step)
    if given:
        work.count("rewound", given)
    work.update_progress(version=args.version)
    return Amount(given)


def _untrain(work: UnitOfWork, drawn: DrawRow) -> int:
    """Make the groups of a trained draw forget its step; returns how many are still there."""
    given = 0
    for group_id in drawn.groups:
        row = work.find(group_id)
        if row is None:
            work.count("rewound_evicted")
            continue
        given += 1
        steps = tuple(step for step in row.steps if step != drawn.step)
        state = row.state
        if state == "trained" and not steps:
            state = "complete"
        draw_id = 0 if row.draw_id == drawn.draw_id else row.draw_id
        work.save(row.but(state=state, steps=steps, draw_id=draw_id), "set_version")
    return given

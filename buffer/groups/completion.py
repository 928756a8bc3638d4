"""Completes or expires a group when its last slot is resolved.

results.put ─► with_resolved ─► finish ─► the group is complete, its record is written
                                   └────► the group expires: it has no trajectory or no contrast
"""

from collections.abc import Sequence

from buffer.groups.slot_outcome import SlotOutcome
from buffer.groups.states import Trigger
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.rows import GroupRow
from buffer.storage.transaction import Parts
from r3l.algorithms import guidance_gain

NO_CONTRAST = "no_contrast"  # cause of a group that another one replaces
REPLACED_BATCHES = 8  # the next draw names at most this many batches' worth of replaced groups


def lacks_contrast(work: UnitOfWork, row: GroupRow) -> bool:
    """True if a training group has equal rewards and the run's algorithm replaces such groups."""
    return work.needs_contrast and row.purpose == "train" and row.contrast == 0


def expire_without_contrast(
    work: UnitOfWork, row: GroupRow, by: Trigger, last: Parts | None = None
) -> GroupRow:
    """Expires a group that lacks contrast. The next draw lists it as replaced. `last`: see
    UnitOfWork.expire."""
    replaced = (*work.index.progress.replaced, row.group_id)
    work.update_progress(replaced=replaced[-REPLACED_BATCHES * work.groups_per_step :])
    return work.expire(row, NO_CONTRAST, by, last)


def with_resolved(row: GroupRow, outcomes: Sequence[SlotOutcome]) -> GroupRow:
    """Returns a copy of the row, with the slots of `outcomes` resolved."""
    done = [outcome for outcome in outcomes if outcome.reward is not None]
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    versions = [row.oldest_version, *(outcome.oldest for outcome in done)]
    return row.with_changes(
        resolved=(*row.resolved, *(outcome.key for outcome in outcomes)),
        checksums=(*row.checksums, *(outcome.checksum for outcome in outcomes)),
        failures=(*row.failures, *(f"{outcome.role}/{outcome.cause}" for outcome in failed)),
        played=(*row.played, *(outcome.key for outcome in done)),
        rewards=(*row.rewards, *(outcome.reward for outcome in done)),
        oldest_version=min((v for v in versions if v >= 0), default=-1),
        nbytes=row.nbytes + sum(len(outcome.encoded) for outcome in outcomes),
    )


def finish(work: UnitOfWork, row: GroupRow, by: Trigger, last: Sequence[SlotOutcome]) -> GroupRow:
    """Completes or expires a group whose slots are all resolved. `last`: the outcomes of the last
    put, which are not in table `part`."""
    parts = {outcome.key: outcome.encoded for outcome in last}
    if work.gates_retries and row.purpose == "train":
        gain = guidance_gain.of_group(row.attempts)
        if gain.slots:  # stored in the progress, since the group itself may be evicted
            gains = (gain, *work.index.progress.gains)
            work.update_progress(gains=gains[: guidance_gain.GROUPS])
    if not row.done:
        return work.expire(row, "no_trajectories", by, parts)
    if lacks_contrast(work, row):
        return expire_without_contrast(work, row, by, parts)
    row = work.move(row, "complete", by)
    work.txn.write_record(row, parts)
    return row

"""Completes or expires a group when its last slot is resolved.

results.put ─► with_received ─► finish ─► the group is complete, its record is written
                                   └────► the group expires: it has no trajectory, or the algorithm
                                          refuses it, and another group replaces it

`GroupRow.all_resolved` in buffer.storage.stored_rows says whether a slot is still open.
"""

from collections.abc import Sequence
from typing import Any

from buffer.groups.states import Trigger
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.stored_rows import GroupRow
from buffer.storage.transaction import Parts
from buffer.wire.received import Received
from r3l.algorithms import guidance_gain
from r3l.algorithms.facts import GroupFacts
from r3l.algorithms.rehearsal import rules
from r3l.records import ReflectionRecord, SlotResult

REPLACED_BATCHES = 8  # the next draw names at most this many batches' worth of replaced groups


def facts_of(row: GroupRow, version: int) -> GroupFacts:
    """Describes a group to an algorithm. `version`: the learner's version."""
    rewards, of = [reward for *_, reward in row.attempts], [of for _, of, _ in row.attempts]
    return GroupFacts(row.task_id, rewards, of, version, row.plan.kind)


def refusal(work: UnitOfWork, row: GroupRow) -> str:
    """Returns why the algorithm refuses a training group, or "". Asks the algorithm only once: an
    admitted group stays admitted until the service restarts."""
    asks = row.purpose == "train" and row.done and work.calls.overrides("admits")
    if not asks or work.index.admits(row.group_id):
        return ""
    facts = facts_of(row, work.index.progress.version)
    cause = work.decide("admits", lambda ask: work.algorithm.admits(facts), _checked_cause, "")
    if not cause:
        work.index.admit(row.group_id)
    return cause


def expire_refused(
    work: UnitOfWork, row: GroupRow, cause: str, by: Trigger, last: Parts | None = None
) -> GroupRow:
    """Expires a group that the algorithm refuses. The next draw lists it as replaced. `last`: see
    UnitOfWork.expire."""
    replaced = (*work.index.progress.replaced, row.group_id)
    work.update_progress(replaced=replaced[-REPLACED_BATCHES * work.groups_per_step :])
    return work.expire(row.with_changes(replaced=True), cause, by, last)


def with_received(
    row: GroupRow,
    results: Sequence[Received[SlotResult]],
    reflections: Sequence[Received[ReflectionRecord]] = (),
) -> GroupRow:
    """Returns a copy of the row, with the slots of `results` resolved."""
    received: list[Received[Any]] = [*results, *reflections]
    records = [each.record for each in results]
    attempts = [r.trajectory for r in records if r.trajectory is not None]
    versions = [row.oldest_version, *(attempt.oldest_version for attempt in attempts)]
    failed = [f"{r.role}/{r.cause}" for r in records if r.status == "failed"]
    return row.with_changes(
        resolved_slots=(*row.resolved_slots, *(r.slot for r in records)),
        of=(*row.of, *(r.of for r in records)),
        checksums=(*row.checksums, *(each.checksum for each in results)),
        failures=(*row.failures, *failed),
        played=(*row.played, *(attempt.slot for attempt in attempts)),
        rewards=(*row.rewards, *(attempt.reward for attempt in attempts)),
        reflections=(*row.reflections, *((r.record.name, r.checksum) for r in reflections)),
        oldest_version=min((v for v in versions if v >= 0), default=-1),
        nbytes=row.nbytes + sum(len(each.encoded) for each in received),
    )


def finish(work: UnitOfWork, row: GroupRow, by: Trigger, last: Parts) -> GroupRow:
    """Completes or expires a group whose slots are all resolved. `last`: the results and
    reflections of the last put, which are not yet in the tables `part` and `reflection`."""
    if row.purpose == "train":
        gain = guidance_gain.of_group(row.attempts, row.plan.kind)
        if gain.slots:  # stored in the progress, since the group itself may be evicted
            gains = (gain, *work.index.progress.gains)
            work.update_progress(gains=gains[: guidance_gain.GROUPS])
    if not row.done:
        return work.expire(row, "no_trajectories", by, last)
    if cause := refusal(work, row):
        return expire_refused(work, row, cause, by, last)
    row = work.move(row, "complete", by)
    work.txn.write_record(row, last)
    return row


def _checked_cause(cause: object) -> str:
    """Returns a cause that an algorithm gave. Raises ValueError if it cannot be one."""
    if broken := rules.of_cause(cause):
        raise ValueError(broken)
    return str(cause)

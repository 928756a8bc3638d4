"""Inserts whole groups that no actor of this run played, as material for replay.

    insert ─► trained, in no step ─► drawn ─► trained, in a step ─► …

An inserted group is picked like a replayed one, has no staleness limit, and is in no task's history
(buffer.sampling.task_history). Its task is not in the list that actors play.
"""

from collections.abc import Sequence
from typing import Any

from buffer.groups.completion import refusal, with_received
from buffer.groups.leases import check_name
from buffer.groups.results import GROUP_LIMIT
from buffer.groups.tasks import check_plan, check_task, new_group
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.layout import INSERTED
from buffer.storage.stored_rows import GroupRow
from buffer.storage.transaction import Parts
from buffer.wire import operations
from buffer.wire.operations import Ids
from buffer.wire.received import (
    Received,
    read_distinct,
    read_reflection_as_given,
    read_result_as_given,
)
from r3l.errors import Conflict, LimitExceeded, RecordError, StoreError
from r3l.records import GroupPlan, ReflectionRecord, SlotResult, Task, Trajectory
from r3l.rollout import engine_symptoms


def insert(work: UnitOfWork, args: operations.Insert) -> Ids:
    """Inserts a group, and returns its id. Raises RecordError if an attempt cannot belong to this
    run, Conflict if the task exists with other content or if the algorithm refuses the group."""
    check_name(args.source, "source")
    results = read_distinct(args.results, read_result_as_given, lambda result: result.slot)
    thoughts = read_distinct(args.reflections, read_reflection_as_given, lambda each: each.name)
    received = list(results.values()), list(thoughts.values())
    plan = GroupPlan(len(results), args.kind)
    _check_slots(plan, results.keys())
    _check_size(work, *received)
    for each in received[0]:
        if each.record.trajectory is not None:
            _check_attempt(work, each.record.trajectory)
    for thought in received[1]:
        where = f"reflection {thought.record.name}"
        _check_versions(work, where, [thought.record.version])
        _check_tokens(work, where, thought.record.token_ids.tolist())
    name = f"g{work.index.next_group:010d}"
    made = GroupRow(name, args.task.task_id, 0, plan, state="trained", env=args.task.env)
    row = with_received(made, *received).with_changes(
        source=args.source, times={"trained": work.now}
    )
    if not row.done:
        raise RecordError("an inserted group needs at least one attempt", field="results")
    for tag in ("", INSERTED):
        check_task(work, args.task, tag)
    if cause := refusal(work, row):  # the last check: a group that is admitted is made
        raise Conflict(
            f"task {args.task.task_id!r:.80}: the run's algorithm refuses the group ({cause}), so "
            "it would never be drawn",
            cause=cause,
        )
    place = new_group(work, "train", INSERTED, _task_index(work, args.task), plan)
    row = row.with_changes(task_index=place.task_index, tag=INSERTED)
    work.save(row, "insert")
    parts = Parts(
        {slot: each.encoded for slot, each in results.items()},
        {name: each.encoded for name, each in thoughts.items()},
    )
    work.txn.write_record(row, parts)
    work.count("inserted")
    return Ids((row.group_id,))


def _task_index(work: UnitOfWork, task: Task) -> int:
    """Returns the task's place among those of inserted groups. Adds it if it is new."""
    index = work.txn.task_index("train", INSERTED, task.task_id)
    if index is not None:
        return index
    total = work.index.tasks["train", INSERTED]
    work.txn.add_task("train", INSERTED, total, task)
    work.index.tasks["train", INSERTED] = total + 1
    return total


# ── checks ──────────────────────────────────────────────────────────────────────────────────


def _check_slots(plan: GroupPlan, slots: Any) -> None:
    if not slots:
        raise RecordError("an inserted group needs at least one attempt", field="results")
    check_plan(plan)
    if set(slots) != set(range(plan.slots)):
        raise RecordError(
            f"an inserted group has the slots {sorted(slots)!s:.80}; number its {plan.slots} slots "
            f"from 0 to {plan.slots - 1}",
            field="slot",
        )


def _check_size(
    work: UnitOfWork,
    results: Sequence[Received[SlotResult]],
    thoughts: Sequence[Received[ReflectionRecord]],
) -> None:
    encoded = [each.encoded for each in results] + [each.encoded for each in thoughts]
    size = sum(map(len, encoded))
    if size > GROUP_LIMIT:
        raise LimitExceeded(f"an inserted group has {size} bytes; limit {GROUP_LIMIT}")
    if len(thoughts) > operations.REFLECTIONS_LIMIT:
        raise LimitExceeded(
            f"an inserted group may have at most {operations.REFLECTIONS_LIMIT} reflections"
        )
    if work.full:
        raise StoreError(f"the store is full: {work.full}; nothing was written", cause="full")


def _check_attempt(work: UnitOfWork, attempt: Trajectory) -> None:
    where = f"attempt of slot {attempt.slot}"
    if not attempt.source:
        raise RecordError(f"{where}: has no source; say where it comes from", field="source")
    for each in attempt.conversations():
        versions = each.step_versions.tolist() + each.step_newest_versions.tolist()
        _check_versions(work, where, versions)
        _check_tokens(work, where, each.token_ids.tolist())
        if each.response_mask[:1].any():
            raise RecordError(
                f"{where}: its first token is a response's, and nothing predicts it; put a token "
                "of a prompt before it",
                field="step_spans",
            )
        if symptom := engine_symptoms.of_logprobs(each.logprobs):
            raise RecordError(
                f"{where}: {symptom.message}; give those of sampling, or 0 for all if they are "
                "unknown",
                field="logprobs",
            )
    if attempt.shown is not None:
        _check_tokens(work, where, attempt.shown.tokens.tolist())


def _check_versions(work: UnitOfWork, where: str, versions: Sequence[int]) -> None:
    newest = work.index.progress.newest_version
    for version in versions:
        if not -1 <= version <= newest:
            raise RecordError(
                f"{where}: policy version {version} does not exist; this run's are 0 to {newest}, "
                "and attempts of anything else have version -1",
                field="step_versions",
            )


def _check_tokens(work: UnitOfWork, where: str, token_ids: Sequence[int]) -> None:
    size = work.vocabulary
    for token in (min(token_ids, default=0), max(token_ids, default=0)):
        if token < 0 or (size is not None and token >= size):
            known = "" if size is None else f"; the run's model knows 0 to {size - 1}"
            raise RecordError(f"{where}: holds token {token}{known}", field="token_ids")

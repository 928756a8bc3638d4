"""Registers tasks, chooses the next task to lease, and plans its group."""

from collections.abc import Iterator, Sequence
from typing import Any

from buffer.groups.unit_of_work import UnitOfWork
from buffer.sampling import samplers, task_history, task_samplers
from buffer.sampling.task_samplers import TaskView
from buffer.sampling.timed_worker import Ask
from buffer.storage.layout import INSERTED, task_id_key
from buffer.storage.stored_rows import GroupRow
from buffer.storage.transaction import Txn
from buffer.wire import operations
from buffer.wire.operations import Amount
from r3l import codec
from r3l.algorithms.facts import LeaseFacts, StoredAttempt
from r3l.algorithms.rehearsal import rules
from r3l.errors import Conflict, LimitExceeded, RecordError
from r3l.records import AttemptKey, GroupPlan, Purpose, Recalled, Task
from r3l.settings import user_class

PLAN = 1  # place of the plan's random numbers among those of a group


def add_tasks(work: UnitOfWork, args: operations.AddTasks) -> Amount:
    """Registers the tasks whose ids are new. Returns how many were new."""
    if args.purpose == "train" and args.tag:
        raise RecordError(
            f"tag {args.tag!r:.80}: only evaluation tasks may have a tag", field="tag"
        )
    for task in args.tasks:
        task_id_key(args.purpose, args.tag, task.task_id)
    if args.purpose == "train" and work.index.tasks["train", INSERTED]:
        for task in args.tasks:
            check_task(work, task, INSERTED)
    known = work.index.tasks[args.purpose, args.tag]
    total = known
    for task in args.tasks:
        total += work.txn.add_task(args.purpose, args.tag, total, task)
    work.index.tasks[args.purpose, args.tag] = total
    progress = work.index.progress
    if args.purpose == "eval":
        min_version = progress.eval_min_version | {args.tag: args.min_version}
        work.update_progress(eval_min_version=min_version)
    elif progress.position == 0:  # an epoch in progress keeps its tasks; new ones join the next
        work.update_progress(size=total)
    return Amount(total - known)


def check_task(work: UnitOfWork, task: Task, tag: str) -> None:
    """Raises Conflict if `tag` already has a different training task with the same id."""
    index = work.txn.task_index("train", tag, task.task_id)
    if index is not None and work.txn.task("train", tag, index) != task:
        raise Conflict(
            f"task {task.task_id!r:.80}: exists with another environment, seed or options, such as "
            "its prompt; give the new one another id"
        )


def pending_tags(work: UnitOfWork) -> list[str]:
    """Returns tags of evaluations that have tasks to lease, sorted by required policy version."""
    progress, tasks = work.index.progress, work.index.tasks
    tags = [t for p, t in tasks if p == "eval" and progress.eval_next.get(t, 0) < tasks[p, t]]
    return sorted(tags, key=lambda tag: (progress.eval_min_version.get(tag, 0), tag))


def next_in_cycle(work: UnitOfWork, plan: GroupPlan | None) -> GroupRow:
    """Makes a new group for the training task that the task sampler chooses. Without a `plan`, the
    run's algorithm plans the group."""
    progress = work.index.progress
    epoch, position, size = progress.epoch, progress.position, progress.size
    if position >= size:
        epoch, position, size = epoch + 1, 0, work.index.tasks["train", ""]

    def history(place: int) -> Iterator[GroupRow]:
        found = work.txn.finished(work.txn.task("train", "", place).task_id)
        return (row for row in found if not row.source)

    sampler = work.config.task_sampler
    with user_class.errors_named(f"buffer.task_sampler {sampler.name}: next"):
        view = TaskView(work.seed, epoch, position, size, history)
        task = task_samplers.make(sampler).next(view)
        if task not in range(size):
            raise ValueError(f"{task!r:.80} is not a task index; the indices are 0 to {size - 1}")
    work.update_progress(epoch=epoch, position=position + 1, size=size)
    row = new_group(work, "train", "", task, plan or GroupPlan(1))
    return row if plan else row.with_changes(plan=_make_plan(work, row, epoch))


def new_group(
    work: UnitOfWork, purpose: Purpose, tag: str, task_index: int, plan: GroupPlan
) -> GroupRow:
    """Makes a new group of a task without saving it."""
    task = work.txn.task(purpose, tag, task_index)
    row = GroupRow(
        group_id=f"g{work.index.next_group:010d}",
        task_id=task.task_id,
        task_index=task_index,
        plan=plan,
        state="leased",
        purpose=purpose,
        tag=tag,
        env=task.env,
        times={"leased": work.now},
    )
    work.txn.add_tag(row)
    return row


def check_plan(plan: GroupPlan) -> None:
    """Raises LimitExceeded if a plan has too few or too many slots or stored attempts."""
    most = operations.SLOTS_LIMIT
    if not 1 <= plan.slots <= most:
        raise LimitExceeded(f"plan of {plan.slots} slots: a group has 1 to {most} slots")
    if len(plan.handed) > operations.HANDED_LIMIT:
        raise LimitExceeded(
            f"plan with {len(plan.handed)} stored attempts: at most {operations.HANDED_LIMIT} are "
            "handed out"
        )


def handed_attempts(txn: Txn, into: str, keys: Sequence[AttemptKey]) -> tuple[Recalled, ...]:
    """Returns the stored attempts `keys`, which the plan of the group `into` hands to the actor.
    Leaves out attempts that are evicted or damaged, or that would exceed HANDED_BYTES."""
    found, room = list[Recalled](), operations.HANDED_BYTES
    for key in keys:
        attempt = task_history.read(txn, into, key.group_id, key.slot)
        if attempt is not None:
            size = len(codec.encode(attempt))
            if size <= room:
                found.append(attempt)
                room -= size
    return tuple(found)


def in_store(txn: Txn, keys: Sequence[AttemptKey]) -> list[AttemptKey]:
    """Returns the stored attempts that are not in the archive, which may be slow to read."""
    rows = ((key, txn.row(key.group_id)) for key in keys)
    return [key for key, row in rows if row is None or row.archived is None]


def _make_plan(work: UnitOfWork, row: GroupRow, epoch: int) -> GroupPlan:
    """Lets the algorithm plan a new group. A restarted service makes the same plan."""
    progress = work.index.progress
    which: dict[str, Any] = {"waiting": progress.closed, "imported": work.config.recall_imported}

    def decide(ask: Ask) -> GroupPlan:
        def read() -> list[StoredAttempt]:
            return list(task_history.attempts(work.txn, row.task_id, **which))

        return work.algorithm.plan(
            LeaseFacts(
                task_id=row.task_id,
                epoch=epoch,
                version=progress.version,
                history=task_history.StoredHistory(lambda: ask(read)),
                gains=progress.gains,
                random=samplers.random_source(work.seed, int(row.group_id[1:]), PLAN),
            )
        )

    def check(plan: Any) -> GroupPlan:
        """Raises ValueError if the plan cannot be carried out."""
        known = [
            key
            for key in getattr(plan, "handed", ())
            if task_history.holds(work.txn, row.task_id, key.group_id, key.slot, **which)
        ]
        if broken := rules.of_plan(plan, known):
            raise ValueError(broken)
        try:
            checked = codec.decode(GroupPlan, codec.encode(plan))
            check_plan(checked)
        except (RecordError, LimitExceeded) as error:
            raise ValueError(str(error)) from None
        quick = in_store(work.txn, checked.handed)
        if len(handed_attempts(work.txn, row.group_id, quick)) < len(quick):
            raise ValueError(
                f"the attempts that it hands out have more than {operations.HANDED_BYTES} bytes"
            )
        return checked

    default = GroupPlan(min(work.algorithm.group_size, operations.SLOTS_LIMIT))
    return work.decide("plan", decide, check, default)

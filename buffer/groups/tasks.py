"""Registers tasks, and chooses the next task to lease."""

from collections.abc import Iterator

from buffer.groups.unit_of_work import UnitOfWork
from buffer.sampling import samplers, task_samplers
from buffer.sampling.task_samplers import TaskView
from buffer.storage.layout import task_id_key
from buffer.storage.rows import GroupRow
from buffer.wire import operations
from buffer.wire.operations import Amount
from r3l.algorithms import guidance_gain
from r3l.errors import RecordError
from r3l.records import GroupPlan, Purpose
from r3l.settings import user_class

GATE = 1  # place of the gate's random numbers among those of a group


def add_tasks(work: UnitOfWork, args: operations.AddTasks) -> Amount:
    """Registers the tasks whose ids are new. Returns how many were new."""
    if args.purpose == "train" and args.tag:
        raise RecordError(
            f"tag {args.tag!r:.80}: only evaluation tasks may have a tag", field="tag"
        )
    for task in args.tasks:
        task_id_key(args.purpose, args.tag, task.task_id)
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


def pending_tags(work: UnitOfWork) -> list[str]:
    """Returns tags of evaluations that have tasks to lease, sorted by required policy version."""
    progress, tasks = work.index.progress, work.index.tasks
    tags = [t for p, t in tasks if p == "eval" and progress.eval_next.get(t, 0) < tasks[p, t]]
    return sorted(tags, key=lambda tag: (progress.eval_min_version.get(tag, 0), tag))


def next_in_cycle(work: UnitOfWork, plan: GroupPlan) -> GroupRow:
    """Makes a new group for the training task that the task sampler chooses."""
    progress = work.index.progress
    epoch, position, size = progress.epoch, progress.position, progress.size
    if position >= size:
        epoch, position, size = epoch + 1, 0, work.index.tasks["train", ""]

    def history(place: int) -> Iterator[GroupRow]:
        return work.txn.finished(work.txn.task("train", "", place).task_id)

    sampler = work.config.tasks
    with user_class.errors_named(f"buffer.tasks {sampler.name}: next"):
        view = TaskView(work.seed, epoch, position, size, history)
        task = task_samplers.make(sampler).next(view)
        if task not in range(size):
            raise ValueError(f"{task!r:.80} is not a task index; the indices are 0 to {size - 1}")
    work.update_progress(epoch=epoch, position=position + 1, size=size)
    row = new_group(work, "train", "", task, plan)
    if work.gates_retries:  # a restarted service makes the same decision
        random = samplers.random_source(work.seed, int(row.group_id[1:]), GATE)()
        if random.random() >= guidance_gain.retry_probability(progress.gains):
            return row.with_changes(plan=GroupPlan(plan.base + plan.distilled))
    return row


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
        times={"leased": work.now},
    )
    work.txn.add_tag(row)
    return row

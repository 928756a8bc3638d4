"""The tasks of an agent: a file with one JSON object a line, each with an `id`."""

import json
from collections.abc import Sequence
from pathlib import Path

from envs.base import SPLITS, ListedTasks, Split, split_of
from r3l.errors import RecordError, UserError
from r3l.files.user_file import numbered_lines
from r3l.records import Task

NAME = "agent"


def read_tasks(file: str) -> ListedTasks:
    """Reads a file of tasks. A task may name a `split`; `split_tasks` divides the others. Raises
    UserError for an invalid file or line."""
    if not file:
        raise UserError("env agent: needs the option tasks: a file with one JSON object a line")
    path = Path(file).expanduser()
    remedy = "write one JSON object a line"
    listed: list[tuple[Split | None, Task]] = []
    seen: dict[str, int] = {}
    for number, line in numbered_lines(path, f"env agent: tasks {path}", remedy):
        where = f"env agent: tasks {path}, line {number}"
        try:
            task = json.loads(line)
            name = task.get("id")
        except (ValueError, RecursionError, AttributeError) as error:
            example = '{"id": 1}'
            raise UserError(f"{where}: must be a JSON object such as {example} ({error})") from None
        if not isinstance(name, str | int) or name == "":
            raise UserError(f"{where}: has no id; give each task an `id` that stays the same")
        if (name := str(name)) in seen:
            raise UserError(f"{where}: repeats id {name!r} of line {seen[name]}; ids must differ")
        seen[name] = number
        split = task.get("split")
        if split not in (None, *SPLITS):
            raise UserError(f"{where}: split {split!r}: must be one of {', '.join(SPLITS)}")
        try:
            listed.append((split, Task(name, NAME, number, {"task": task})))
        except RecordError as error:
            raise UserError(f"{where}: {error}") from None
    if not seen:
        raise UserError(f"env agent: tasks {path} contains no task; {remedy}")
    return split_tasks(listed)


def split_tasks(tasks: Sequence[tuple[Split | None, Task]]) -> ListedTasks:
    """Divides tasks into splits. If no task names a split, a tenth is for evaluation and the rest
    for training. If one of these two splits would be empty, both get all tasks."""
    listed: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for split, task in tasks:
        listed[split or split_of(task.task_id)].append(task)
    if not any(split for split, _ in tasks):
        listed["train"] += listed.pop("warmup")
        every = listed["train"] + listed["eval"]
        listed = {"train": listed["train"] or every, "eval": listed["eval"] or every}
    return ListedTasks(listed)

"""The tasks of an agent: a file with one JSON object a line, each with an `id`. Some of their
fields may be for the grader alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.base import SPLITS, ListedTasks, Split, split_of
from r3l.errors import RecordError, UserError
from r3l.files.user_file import numbered_lines
from r3l.records import Task

NAME = "agent"
ANSWERS = (
    "answer answers correct_answer expected_answer reference_answer gold_answer ground_truth gold "
    "solution solutions"
).split()
"""Fields of a task that only its grader sees, unless the option `hidden` names others."""


class Hidden:
    """The fields of tasks that the agent does not see. `names`: a name with dots is a field in a
    field. `graded`: whether there is a grader; without one, the agent says how it did."""

    def __init__(self, names: Sequence[str] | None, *, graded: bool) -> None:
        if isinstance(names, str) or not all(isinstance(name, str) for name in names or ()):
            raise UserError(f"env agent: hidden {names!r}: must be a list of names of fields")
        self.names = tuple(ANSWERS * graded if names is None else names)

    def without(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the agent sees of a task."""
        shown = dict(task)
        for name in self.names:
            field, _, inner = name.partition(".")
            if field not in shown:
                continue
            if not inner:
                del shown[field]
            elif isinstance(shown[field], dict):
                shown[field] = Hidden([inner], graded=True).without(shown[field])
        return shown

    def check_command(self, command: str) -> None:
        """Raises UserError if a command names a hidden field."""
        if named := [name for name in self.names if f"{{{name}}}" in command]:
            raise UserError(
                f"env agent: command has {{{named[0]}}}, which only the grader sees; leave it out, "
                "or list in hidden the fields that the agent must not see"
            )


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

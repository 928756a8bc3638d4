"""The tasks of an agent: a file with one JSON object a line, each with an `id`. Some of their
fields may be for the grader alone."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.base import SPLITS, ListedTasks, Split, split_of
from r3l.errors import RecordError, UserError
from r3l.files.hub_data_set import is_name
from r3l.files.hub_data_set import rows as hub_rows
from r3l.files.user_file import numbered_lines
from r3l.records import Task

NAME = "agent"
FIELD = re.compile(r"\{(\w+)\}")
"""A field of the task in a command, such as `{question}`."""
_MEANT = re.compile(r"(?<!\$)" + FIELD.pattern)  # not ${NAME}, which is a shell's
ANSWER = re.compile(
    r"(?:\w+_)?(?:answers?|solutions?|golds?|truths?|groundtruths?|targets?|labels?|tests?|oracle"
    r"|rubrics?|patch|test_(?:cases?|lists?|code))"
    r"|(?:expected|gold|golden|ground_truth|canonical|hidden|private)(?:_\w+)?"
    r"|reward_model|reward_spec|grading|grader|verifier|(?:fail|pass)_to_pass"
)
"""Names of fields that usually hold the answer, in lower case and with underscores."""
_EDGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^\w]+")


def holds_answer(name: str) -> bool:
    """Whether a field's name matches ANSWER, as `Answer`, `finalAnswer` and `test-cases` do."""
    return bool(ANSWER.fullmatch(_EDGE.sub("_", name.strip()).lower()))


class Hidden:
    """The fields of tasks that the agent does not see. `names`: the hidden fields, in upper or
    lower case; a dot leads to a field within a field. If `names` is None and there is a grader, the
    fields and inner fields whose names match ANSWER are hidden. `graded`: whether there is a
    grader; without one, the agent reports its own reward."""

    def __init__(self, names: Sequence[str] | None, *, graded: bool) -> None:
        if isinstance(names, str) or not all(isinstance(name, str) for name in names or ()):
            raise UserError(f"env agent: hidden {names!r}: must be a list of names of fields")
        self.usual = names is None and graded
        self.names = {name.lower() for name in names or ()}

    def without(self, task: Mapping[str, Any], outer: str = "") -> dict[str, Any]:
        """Returns what the agent sees of a task, or of its field `outer` (which ends in a dot)."""
        return {
            name: self.without(value, f"{outer}{name}.") if isinstance(value, dict) else value
            for name, value in task.items()
            if not self._hides(outer, name)
        }

    def of(self, task: Mapping[str, Any], outer: str = "") -> list[str]:
        """Returns the names of the task's hidden fields. The name of an inner field has dots."""
        found: list[str] = []
        for name, value in task.items():
            if self._hides(outer, name):
                found.append(outer + name)
            elif isinstance(value, dict):
                found += self.of(value, f"{outer}{name}.")
        return found

    def check_command(self, command: str) -> None:
        """Raises UserError if a command names a hidden field."""
        if named := [name for name in FIELD.findall(command) if self._hides("", name)]:
            raise UserError(
                f"env agent: command has {{{named[0]}}}, which only the grader sees; leave it out, "
                "or set hidden to the fields that the agent must not see ([] hides none)"
            )

    def _hides(self, outer: str, name: str) -> bool:
        if self.usual:  # deeper, it may be a schema's
            return outer.count(".") < 2 and holds_answer(name)
        return f"{outer}{name}".lower() in self.names


def unknown_fields(command: str, tasks: Sequence[Task]) -> str:
    """Returns a note if a command has a field that no task has, and "" otherwise."""
    known = sorted({name for task in tasks for name in task.options.get("task", {})})
    lacking = sorted({found[0] for found in _MEANT.finditer(command) if found[1] not in known})
    if not lacking or not known:
        return ""
    return (
        f"env agent: command has {', '.join(lacking)}, which is no field of the tasks "
        f"({', '.join(known)}), so the agent gets it as it stands there"
    )


def read_tasks(file: str) -> ListedTasks:
    """Reads a file of tasks, or a data set of the hub (r3l.files.hub_data_set), whose rows without
    an id are numbered. A task may name a `split`; `split_tasks` divides the others. Raises
    UserError for an invalid file or line, and NotDownloaded for a data set that is not in the
    user's cache."""
    if not file:
        raise UserError("env agent: needs the option tasks: a file with one JSON object a line")
    path, remedy = Path(file).expanduser(), "write one JSON object a line"
    listed: list[tuple[Split | None, Task]] = []
    seen: dict[str, int] = {}
    for number, task in _rows_of_hub(file) if is_name(file) else _rows_of(path, remedy):
        where, name = f"env agent: tasks {path}, line {number}", task.get("id")
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


def _rows_of(path: Path, remedy: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields each line of a file, with its number."""
    for number, line in numbered_lines(path, f"env agent: tasks {path}", remedy):
        try:
            task = json.loads(line)
            task.get("id")
        except (ValueError, RecursionError, AttributeError) as error:
            where, example = f"env agent: tasks {path}, line {number}", '{"id": 1}'
            raise UserError(f"{where}: must be a JSON object such as {example} ({error})") from None
        yield number, task


def _rows_of_hub(name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields each row of a data set, with its number and an id."""
    for number, row in enumerate(hub_rows(name), 1):
        yield number, row if row.get("id") not in (None, "") else row | {"id": f"{number:06d}"}


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

"""Reads what a run's page shows. Names whatever cannot be read, and still reads the rest.

config.yaml, versions.json, machines.jsonl ─┐
progress.jsonl, skipped.jsonl, hangs.jsonl ─┼─► RunData ─► launch.inspection.pages.run_page
evaluations/, buffer/ (read-only) ──────────┘
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from buffer.storage.store import Store
from buffer.storage.store_path import has_store
from buffer.tools import store_reads
from learner.evaluation.conversation import Conversation
from learner.evaluation.evaluation_folder import read_attempts
from learner.evaluation.evaluator import EVALUATIONS
from r3l.records import Group
from r3l.run.bill import Usage
from r3l.run.bill import total as total_used
from r3l.run.config import RunConfig
from r3l.run.files.progress_lines import EvalLine, History
from r3l.run.files.run_folder import Machine, RunFolder
from r3l.text import label
from r3l.views.attempt_view import AttemptView, Pair, pairs, views

T = TypeVar("T")
PAIRS, RETRIES = 4, 3
"""How many tasks are shown before and after, and how many retries."""
CAUSE = 300  # bytes
TRIED = 40  # groups that are read, at most, to find these


@dataclass(frozen=True)
class BeforeAndAfter:
    """A task before and after: two attempts, and when each was played. `change`: the change of the
    reward."""

    task: str
    before: AttemptView
    after: AttemptView
    when: tuple[str, str]

    @property
    def change(self) -> float:
        return (self.after.reward or 0.0) - (self.before.reward or 0.0)


@dataclass(frozen=True)
class Stored:
    """What the page shows from the store. `rows`: facts of all groups, oldest first. `trained`:
    tasks seen in training, before and after. `retries`: retries that earned more, each with its
    task."""

    rows: Sequence[dict[str, Any]] = ()
    trained: Sequence[BeforeAndAfter] = ()
    retries: Sequence[tuple[str, Pair]] = ()


@dataclass
class RunData:
    """A run's facts. `unread`: what could not be read, and why."""

    folder: RunFolder
    config: RunConfig | None = None
    config_text: str = ""
    history: History = field(default_factory=lambda: History([], []))
    versions: dict[str, str] = field(default_factory=dict)
    machines: list[Machine] = field(default_factory=list)
    best: EvalLine | None = None
    used: Usage | None = None
    hangs: int = 0
    skipped: int = 0
    bytes: int = 0
    stored: Stored = field(default_factory=Stored)
    evaluated: dict[int, list[Conversation]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    def read(self, what: str, function: Callable[[], T], default: T) -> T:
        """Returns what `function` reads. After any error, notes the cause and returns `default`, so
        that the page of a damaged run shows what is left."""
        try:
            return function()
        except Exception as error:
            cause = label(str(error), CAUSE)
            self.unread.append(f"{what}: {cause or type(error).__name__}")
            return default


def read_run(folder: RunFolder) -> RunData:
    """Reads a run. Raises UserError only if no run was started in the folder."""
    data = RunData(folder.require_run())
    data.config = data.read("settings", folder.settings, None)
    data.config_text = data.read("settings as text", partial(_text, folder.config_file), "")
    data.history = data.read("progress.jsonl", folder.history, data.history)
    data.versions = data.read("versions.json", folder.versions, {})
    data.machines = data.read("machines.jsonl", folder.machines, [])
    data.best = data.read("best/", folder.best_evaluation, None)
    bill = data.read("bill.json", folder.bill, dict[str, Usage]())
    data.used = total_used(bill.values()) if bill else None
    data.hangs = data.read("hangs.jsonl", lambda: len(folder.hangs()), 0)
    data.skipped = data.read("skipped.jsonl", lambda: _lines(folder.skipped_file), 0)
    data.bytes = data.read("the folder's size", lambda: _size(folder.path), 0)
    if has_store(folder.store) or data.history.reached:
        data.stored = data.read("the store", partial(_stored, folder.store, data), Stored())
    data.evaluated = _evaluations(data)
    return data


def tasks_before_and_after(
    first: Sequence[Conversation],
    last: Sequence[Conversation],
    when: tuple[str, str],
    most: int = PAIRS,
) -> list[BeforeAndAfter]:
    """Pairs the first attempts at each task in two evaluations, and chooses `most` tasks: better,
    worse and equal ones in turn, each kind sorted by name."""
    before = {one.task_id: one for one in reversed(first) if one.steps}
    after = {one.task_id: one for one in reversed(last) if one.steps}
    both = sorted(before.keys() & after.keys())
    found = [BeforeAndAfter(task, before[task], after[task], when) for task in both]
    kinds = [
        [each for each in found if each.change > 0],
        [each for each in found if each.change < 0],
        [each for each in found if each.change == 0],
    ]
    turns = (kind[index] for index in range(most) for kind in kinds if index < len(kind))
    return [each for each, _ in zip(turns, range(most), strict=False)]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _size(folder: Path) -> int:
    """Returns the bytes on disk of all files below a folder."""
    files = (path.lstat() for path in folder.rglob("*") if not path.is_symlink())
    return sum(512 * status.st_blocks for status in files)


def _evaluations(data: RunData) -> dict[int, list[Conversation]]:
    """Reads the attempts of the first and the last evaluation that can be read."""
    steps = [line.step for line in data.history.evaluations]
    read: dict[int, list[Conversation]] = {}
    for order in (steps, steps[::-1]):
        for step in order:
            if step not in read:
                place = data.folder.path / EVALUATIONS / f"step-{step:06d}"
                reads = partial(read_attempts, place, "report")
                read[step] = data.read(f"evaluation of step {step}", reads, [])
            if read[step]:
                break
    return {step: read[step] for step in sorted(read) if read[step]}


def _stored(folder: Path, data: RunData) -> Stored:
    with Store(folder, read_only=True) as store:
        rows = [row for row in store_reads.rows(store) if row["purpose"] == "train"]
        return Stored(rows, _trained(store, rows, data), _retries(store, rows, data))


def _group(store: Store, row: dict[str, Any], data: RunData) -> Group | None:
    read = partial(store_reads.group, store, row["group"])
    return data.read(f"group {row['group']}", read, None)


def _trained(store: Store, rows: Sequence[dict[str, Any]], data: RunData) -> list[BeforeAndAfter]:
    """Finds tasks that were played early and again late, and takes a first attempt of each."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["done"]:
            by_task.setdefault(row["task"], []).append(row)
    again = [own for own in by_task.values() if own[-1]["version"] > own[0]["version"]]
    again.sort(key=lambda own: own[0]["version"] - own[-1]["version"])
    found = list[BeforeAndAfter]()
    for own in again[:TRIED]:
        sides = [_first(_group(store, row, data)) for row in (own[0], own[-1])]
        before, after = sides
        if before is not None and after is not None:
            when = (f"policy {own[0]['version']}", f"policy {own[-1]['version']}")
            found.append(BeforeAndAfter(own[0]["task"], before, after, when))
        if len(found) == PAIRS:
            break
    return found


def _first(group: Group | None) -> AttemptView | None:
    """Returns a group's first attempt that is not a retry."""
    shown = views(group) if group is not None else []
    return next((one for one in shown if one.of < 0 and one.steps and not one.source), None)


def _retries(store: Store, rows: Sequence[dict[str, Any]], data: RunData) -> list[tuple[str, Pair]]:
    """Finds the retries that earned most beyond the attempt they retry, one of each task."""
    gained = [row for row in rows if (row["gain"] or 0.0) > 0]
    gained.sort(key=lambda row: row["gain"], reverse=True)
    best = {row["task"]: row for row in reversed(gained)}
    chosen = sorted(best.values(), key=lambda row: row["gain"], reverse=True)
    found = list[tuple[str, Pair]]()
    for row in chosen[:TRIED]:
        group = _group(store, row, data)
        of_group = pairs(group) if group is not None else []
        better = [pair for pair in of_group if pair.gain is not None and pair.gain > 0]
        if better:
            found.append((row["task"], max(better, key=lambda pair: pair.gain or 0.0)))
        if len(found) == RETRIES:
            break
    return found


def points_of(data: RunData, tag: str) -> Iterator[tuple[int, float]]:
    """Yields the steps that have a metric, with its value."""
    return (
        (line.step, float(line.metrics[tag])) for line in data.history.steps if tag in line.metrics
    )


def total(data: RunData, tag: str) -> float | None:
    """Sums a metric over all steps; None if no step has it."""
    values = [value for _, value in points_of(data, tag)]
    return sum(values) if values else None


def tags(data: RunData) -> set[str]:
    """Returns the names of all metrics that any step has."""
    return set(chain.from_iterable(line.metrics for line in data.history.steps))

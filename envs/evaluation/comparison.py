"""Two evaluations of the same tasks, compared task by task.

task:   mean of its attempts here − mean of its attempts there
all:    how many tasks are better, worse, the same; mean difference with its interval
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path

from envs.evaluation.conversation import Conversation
from envs.evaluation.evaluation_folder import Settings, read_attempts, read_settings
from envs.evaluation.intervals import bootstrap
from envs.evaluation.metrics import REWARD, SUCCESS_RATE, Estimate, by_task
from r3l.errors import UserError
from r3l.records import Record

COMPARED = (SUCCESS_RATE, REWARD)
"""Metrics of which every task has a value, and more is better."""


class Paired(Record):
    """Tasks by the sign of their difference, and the mean difference over tasks."""

    better: int
    worse: int
    same: int
    difference: Estimate


Compared = dict[str, Paired]


def read_other(folder: Path, tasks: Set[str], settings: Settings) -> list[Conversation]:
    """The attempts in a folder, to compare an evaluation of `tasks` with. Raises UserError if they
    are of other tasks."""
    found = read_attempts(folder, "--against")
    if _environment(settings) != _environment(read_settings(folder)):
        raise UserError(
            f"--against {folder}: is of another environment or split, so its tasks are others; "
            "give both the same --env, --split and env.options"
        )
    there = {one.task_id for one in found}
    if there != tasks:
        raise UserError(
            f"--against {folder}: has {len(there)} tasks, {len(there & tasks)} of them among the "
            f"{len(tasks)} of this evaluation; give both the same --tasks"
        )
    return found


def compare(attempts: Sequence[Conversation], others: Sequence[Conversation]) -> Compared:
    """One evaluation against another of the same tasks, by metric."""
    here, there = by_task(attempts), by_task(others)
    found = {}
    for metric in COMPARED:
        values = [
            (metric.of_task(each) or 0.0) - (metric.of_task(there[task]) or 0.0)
            for task, each in here.items()
        ]
        found[metric.name] = Paired(
            better=sum(value > 0 for value in values),
            worse=sum(value < 0 for value in values),
            same=sum(value == 0 for value in values),
            difference=Estimate(sum(values) / len(values), *bootstrap(values)),
        )
    return found


def _environment(settings: Settings) -> tuple[object, ...]:
    """What decides about the tasks, apart from their number."""
    found = settings.get("env")
    env = found if isinstance(found, dict) else {}
    return settings.get("split"), *(env.get(name) for name in ("name", "options", "others"))

"""Resets a user's environment to every task of its list, so that a fault in one line of the data is
found before a run, and not after the run has drawn that task."""

import time
from collections.abc import Mapping
from typing import Any

from envs import registry
from envs.base import ListedTasks, Split
from r3l.errors import EnvironmentFailed, UserError
from r3l.rollout.env_calls import read_reset
from r3l.settings import user_class

MOST_S = 10.0
"""Time for the resets of one environment, seconds."""
PLAYED: tuple[Split, ...] = ("eval", "train")


def openings(name: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Resets a user's class to each of its listed tasks, for up to MOST_S. Returns the first
    observations, keyed by task id. Raises UserError, which names the task, if a reset fails.

    Returns {} if the class does not declare `in_process`, since only such a class is quick and
    cannot hang, or if it has no list.
    """
    if not (registry.is_path(name) and registry.in_process(name)):
        return {}
    source = registry.task_source(name, **options)
    if not isinstance(source, ListedTasks):
        return {}
    env, seen, end = registry.make(name, **options), dict[str, str](), time.monotonic() + MOST_S
    for task in (task for split in PLAYED for task in source.listed.get(split, ())):
        if time.monotonic() > end:
            break
        said = f"env {name}: reset to task {task.task_id}"
        with user_class.errors_named(said):
            answer: object = env.reset(seed=task.seed, options=dict(task.options))
        try:
            seen[task.task_id], _ = read_reset(env.spec.name, answer)
        except EnvironmentFailed as error:
            raise UserError(f"{said}: {error}") from error
    env.close()
    return seen

"""Lets the package `verifiers` play its tasks. The package calls the policy at the gateway."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from envs.agents.agent import Agent
from envs.agents.agent_checks import CALL_FUNCTION, error_of, interpreter, run_command
from envs.agents.agent_process import Argv
from envs.agents.agent_tasks import split_tasks
from envs.base import Split, TaskSource
from r3l.errors import UserError
from r3l.records import Task

PLAY = Path(__file__).with_name("verifiers_play.py")
LIST_S = 600.0
"""Time limit for checking or listing a taskset, which may download its tasks; seconds."""


class VerifiersTaskset(Agent):
    """An installed taskset. `python`: an interpreter that has verifiers. `config`: further settings
    for verifiers, such as {taskset: {…}, agent: {harness: {id: bash}}}."""

    def __init__(
        self, member: str, *, python: str = "", config: dict[str, Any] | None = None
    ) -> None:
        _run(member, python, _config(member, config), "check")
        super().__init__(command=member, python=python)
        self.spec = replace(self.spec, name=f"verifiers:{member}")

    @staticmethod
    def task_source(member: str, **options: Any) -> TaskSource:  # type: ignore[override]
        python, config = options.get("python", ""), _config(member, options.get("config"))
        tasks: list[tuple[Split | None, Task]] = []
        for line in _run(member, python, config, "list").splitlines():
            task = json.loads(line) | {"config": json.loads(config)}
            name, seed = task["key"][:16], task["index"]
            tasks.append((None, Task(name, f"verifiers:{member}", seed, {"task": task})))
        if not tasks:
            raise UserError(f"env verifiers:{member}: has no tasks")
        return split_tasks(tasks)

    def _starter(self, command: str, python: str) -> tuple[Argv, Argv]:
        return (interpreter(python), str(CALL_FUNCTION), f"{PLAY}:play"), ()


def _config(member: str, config: dict[str, Any] | None) -> str:
    given = config or {}
    return json.dumps(given | {"taskset": given.get("taskset", {}) | {"id": member}})


@cache
def _run(member: str, python: str, config: str, action: str) -> str:
    """Returns what verifiers_play.py prints. Raises UserError with the script's last error line."""
    argv = [interpreter(python), str(PLAY), config, action]
    ended = run_command(f"verifiers:{member}", argv, LIST_S)
    if ended.returncode:
        raise UserError(f"env verifiers:{member}: {error_of(ended)}")
    return ended.stdout

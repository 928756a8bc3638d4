"""The environment `agent`: a program that calls the policy itself, over HTTP.

    reset ─► a folder of its own, the task's text
    step({"start": {variables}})   starts the agent's process
    step({"grade": [calls]})       starts the grader's process
    step({"poll": null})           how the process is doing: exit code and last lines
    step({"stop": null})           the same, then kills it with its process group

The gateway (actors.gateway) plays these steps. The process runs in the worker process's isolation:
its memory is limited, and it ends with the worker or the actor, however they end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from envs.agents.agent_checks import starter_of, starter_of_function
from envs.agents.agent_process import AgentProcess, Argv, child_environment
from envs.agents.agent_tasks import NAME, read_tasks
from envs.base import TaskSource
from r3l.errors import UserError
from r3l.rollout.interfaces import EnvSpec
from r3l.rollout.prompts import Prompts

LONGEST_VARIABLE = 120_000
"""Bytes of R3L_TASK; a longer task is left out, because Linux would start no program with it."""

FIELD = re.compile(r"\{(\w+)\}")
"""A field of the task in a command, such as `{question}`."""


class Agent:
    """A program to train. `command`: the line that starts it, `file.py:function`, called with the
    task, or the URL of a server that plays it (envs.agents.remote_agent); `python`: its
    interpreter; `tasks`: a file with one JSON object a line; `reward`: `file.py:function`, called
    with the task, the calls and the agent's folder; if left out, the agent posts its reward or
    prints it as its last line; `workspace`: a folder that is copied into the agent's own;
    `prompts`: texts that replace those of r3l/rollout/prompts, by name."""

    once = True  # its process and folder end with the attempt, however that ends

    def __init__(
        self,
        *,
        command: str = "",
        tasks: str = "",
        reward: str = "",
        python: str = "",
        workspace: str = "",
        prompts: dict[str, str] | None = None,
    ) -> None:
        try:
            Prompts(prompts)
        except ValueError as error:
            raise UserError(f"env agent: prompts: {error}") from None
        own = prompts or {}
        self.spec = EnvSpec(NAME, "", max_steps=256, max_response_tokens=1024, prompts=own)
        self.starter, self.argv = self._starter(command, python)
        self.grader = starter_of_function("reward", reward, python) if reward else ()
        if workspace and not Path(workspace).expanduser().is_dir():
            raise UserError(f"env agent: workspace {workspace} is not a folder")
        self.workspace = workspace
        self.task: dict[str, Any] = {}
        self.secret: list[str] = []
        self.folder: Path | None = None
        self.process: AgentProcess | None = None

    @staticmethod
    def task_source(*, tasks: str = "", **others: Any) -> TaskSource:
        """Returns the tasks of the file."""
        return read_tasks(tasks)

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ends the previous attempt's process and makes a new folder. `secret` of the options:
        variables that no process of the attempt gets."""
        self.close()
        given = options or {}
        self.task, self.secret = dict(given.get("task", {})), given.get("secret", [])
        self.folder = Path(tempfile.mkdtemp(prefix="r3l-agent-"))
        work = self.folder / "work"
        if self.workspace:
            shutil.copytree(Path(self.workspace).expanduser(), work, symlinks=True)
        else:
            work.mkdir()
        return json.dumps(self.task), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes one of the gateway's steps; replies to anything else with a sentence."""
        try:
            ((name, value),) = json.loads(action).items()
        except (ValueError, AttributeError):
            return "not a step of an agent", 0.0, False, False, {}
        match name:
            case "start":
                self._start(self.starter, self.argv, [self.task], value)
            case "grade":
                assert self.folder is not None  # an attempt begins with a reset
                work = str(self.folder / "work")
                self._start(self.grader, (), [self.task, value, work], {})
        state = self._state()
        if name == "stop":
            self._stop()
        return json.dumps(state), 0.0, False, False, {}

    def close(self) -> None:
        """Kill the process and remove the folder."""
        self._stop()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def _starter(self, command: str, python: str) -> tuple[Argv, Argv]:
        return starter_of(command, python)

    def _start(self, starter: Argv, argv: Argv, arguments: list[Any], more: dict[str, str]) -> None:
        self._stop()
        assert self.folder is not None  # an attempt begins with a reset
        (self.folder / "stdin").write_text("" if argv else json.dumps(arguments))
        own = os.path.dirname((argv or starter)[0])
        path = os.pathsep.join([own, os.environ.get("PATH", os.defpath)])
        given = {"R3L_WORKSPACE": str(self.folder / "work")}
        task = json.dumps(self.task, ensure_ascii=False)
        if len(task.encode()) <= LONGEST_VARIABLE:
            given["R3L_TASK"] = task
        variables = child_environment(given | {"PATH": path} | more, self.secret)
        words = tuple(FIELD.sub(self._field, word) for word in argv)
        self.process = AgentProcess(starter, words, self.folder, variables)

    def _field(self, found: re.Match[str]) -> str:
        """Returns a field of the task as text; what is no field stays as it is."""
        value = self.task.get(found[1], found[0])
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _state(self) -> dict[str, Any]:
        """Returns the exit code, None while the process runs, and the last lines it wrote."""
        code = None if self.process is None else self.process.poll()
        state: dict[str, Any] = {"exit": code, "grader": bool(self.grader)}
        state["pid"] = 0 if self.process is None else self.process.pid
        if self.process is not None:
            state |= {name: self.process.last_line(name) for name in ("stdout", "stderr")}
        return state

    def _stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()

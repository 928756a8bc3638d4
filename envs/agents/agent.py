"""The environment `agent`: starts a program, and the program calls the policy over HTTP.

Implements envs.agents.agent_runner, whose methods actors.agents.agent_attempt calls. Each process
has limited memory, and is ended when the worker process or the actor ends.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs.agents import workspace_copy
from envs.agents.agent_checks import (
    NOTHING,
    PROGRAM,
    is_url,
    keepers_of,
    servers_of,
    starter_of,
    starter_of_function,
)
from envs.agents.agent_process import AgentProcess, Argv
from envs.agents.agent_runner import KEEPER, MAIN, AgentFacts, Operation, ProcessState, Saved
from envs.agents.agent_tasks import FIELD, NAME, Hidden, read_tasks
from envs.agents.agent_variables import child_environment, shared_folders
from envs.agents.opened_folder import FOLDER, OpenedFolder
from envs.agents.task_folders.harbor_tasks import (
    RUNNER,
    OpenedTask,
    harbor_tasks,
    is_folder,
    listed,
)
from envs.base import TaskSource
from r3l.errors import EnvironmentFailed, UserError
from r3l.files.temporary_folder import held_folder
from r3l.rollout.env_interface import EnvSpec
from r3l.rollout.prompts import Prompts

COPY = (*PROGRAM, f"{Path(__file__).with_name('workspace_copy.py')}:run")

LONGEST_VARIABLE = 120_000
"""Most bytes of R3L_TASK. A longer task is left out, since Linux would start no program with it."""

LONGEST_ARGUMENT = (128 << 10) - 1
"""Most bytes of one argument of a program (Linux, MAX_ARG_STRLEN)."""

SAVED: dict[str, Saved] = {"": "folder", NOTHING: "nothing"}
"""What each value of the option `snapshot` saves. Any other value saves all state."""


class Agent:
    """A program to train.

    - `command`: a command line, a `file.py:function` to call with the task, or the URL of a server
      that plays tasks (envs.agents.remote_agent)
    - `python`: the program's interpreter
    - `tasks`: a file with one JSON object a line, or a folder of task folders in Harbor's format
      (envs.agents.task_folders.harbor_tasks), whose tests are the grader
    - `reward`: the grader, a `file.py:function`. Its arguments are the task, the agent's calls and
      (if it takes three) the agent's folder. Without a grader, the agent posts its reward or prints
      the reward as its last line.
    - `workspace`: a folder whose content is copied to the agent's folder
    - `snapshot`: `none` (never save the agent's folder), `workspace` (the folder holds all state)
      or a command that saves the state outside the folder
    - `restore`: the command that restores the state outside the folder (envs.agents.workspace_copy)
    - `mcp`: MCP servers by name, each a command or a URL
    - `hidden`: fields of the tasks that only the grader sees, such as `answer` or `info.answer`;
      by default, with a grader, those in envs.agents.agent_tasks.ANSWER
    - `fence`: whether the kernel keeps the agent, its MCP servers and the grader from signalling
      other processes and from reading their memory and variables (Linux 6.12). Then `sudo` fails,
      and root loses CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_PERFMON.
    - `prompts`: replacements for texts of r3l/rollout/prompts, by name
    - `unsandboxed`: whether task folders are played in processes of this machine
    - `harbor`: further settings of Harbor's trials, if its runner plays task folders
    """

    once = True  # its process and folder end with the attempt, however that ends

    def __init__(
        self,
        *,
        command: str = "",
        tasks: str = "",
        reward: str = "",
        python: str = "",
        workspace: str = "",
        snapshot: str = "",
        restore: str = "",
        mcp: dict[str, str] | None = None,
        hidden: list[str] | None = None,
        fence: bool = True,
        prompts: dict[str, str] | None = None,
        unsandboxed: bool = False,
        harbor: dict[str, Any] | None = None,
    ) -> None:
        try:
            Prompts(prompts)
        except ValueError as error:
            raise UserError(f"env agent: prompts: {error}") from None
        own = prompts or {}
        self.spec = EnvSpec(NAME, "", max_steps=256, max_response_tokens=1024, prompts=own)
        if workspace and not Path(workspace).expanduser().is_dir():
            raise UserError(f"env agent: workspace {workspace} is not a folder")
        self.workspace = workspace
        others: dict[str, object] = {"reward": reward, "workspace": workspace, "hidden": hidden}
        if command.startswith(RUNNER):
            others |= {"mcp": mcp, "snapshot": snapshot, "restore": restore}
        self.harbor = harbor_tasks(
            tasks, command, python, unsandboxed=unsandboxed, settings=harbor, others=others
        )
        self.starter, self.argv = self._starter(command, python)
        self.asked = [command] if is_url(command) else []
        self.grader = starter_of_function("reward", reward, python) if reward else ()
        if self.harbor:
            self.grader = self.harbor.grader
        self.keepers = keepers_of(snapshot, restore, python, workspace)
        self.servers = servers_of(mcp or {}, python, workspace)
        self.hidden, self.fence = Hidden(hidden, graded=bool(reward)), fence
        self.hidden.check_command(command)
        self.facts = AgentFacts(
            graded=bool(self.grader),
            saved="nothing" if command.startswith(RUNNER) else SAVED.get(snapshot, "all"),
            servers={name: "" if self.servers[name] else url for name, url in (mcp or {}).items()},
        )
        self.task: dict[str, Any] = {}
        self.shown: dict[str, Any] = {}
        self.secret: list[str] = []
        self.stored = False
        self.place: OpenedFolder | None = None
        self.opened: OpenedTask | None = None
        self.identity: list[int] = []
        self.given: dict[str, str] = {}
        self.processes: dict[str, AgentProcess] = {}
        self.left: list[AgentProcess] = []

    @staticmethod
    def task_source(*, tasks: str = "", **others: Any) -> TaskSource:
        return listed(tasks) if is_folder(tasks) else read_tasks(tasks)

    def prepare(self, task: dict[str, Any], secret: list[str], stored: bool = False) -> AgentFacts:
        self.close()
        self.task, self.secret, self.stored = task, secret, stored
        self.shown = self.hidden.without(task)
        self.place = OpenedFolder(*held_folder(FOLDER))
        work = self.place.path / "work"
        if self.workspace and not stored:
            shutil.copytree(Path(self.workspace).expanduser(), work, symlinks=True)
        else:
            work.mkdir()
        found = work.lstat()
        self.identity = [found.st_dev, found.st_ino]
        facts = replace(self.facts, task=self.shown, hidden=self.hidden.of(task))
        self.opened = None
        if self.harbor is None:
            return facts
        known = child_environment({}, secret)
        self.opened = self.harbor.opened(task, self.place.path, known)
        self.opened.fill(work)
        return replace(facts, limit_s=self.opened.limit_s, grader_s=self.opened.grader_s)

    def start(self, variables: dict[str, str], fresh: list[str] | None = None) -> ProcessState:
        self.given = variables | self._folders(fresh or ())
        asked = self.opened.asked if self.opened else self.asked
        return self._start(MAIN, self.starter, self.argv, [self.shown, *asked])

    def grade(self, calls: list[dict[str, Any]]) -> ProcessState:
        """Starts the grader, after it has ended the agent and its MCP servers."""
        self.given = {}
        for name in [name for name in self.processes if name != KEEPER]:
            self.stop(name)
        folder = [] if self.stored else [self._work]
        asked = self.opened.graded if self.opened else [self.task, calls, *folder]
        return self._start(MAIN, self.grader, (), asked, grading=True)

    def keep(self, operation: Operation, folder: str, call: int) -> ProcessState:
        """Saves or restores the folder. Starts a process only for a command or a large folder."""
        words = self._words(self.keepers.get(operation, ()))
        arguments = (operation, self._work, folder, call, words, self.identity)
        folders = self._work, os.path.join(folder, "objects")
        if not words and all(map(workspace_copy.is_small, folders)):
            return _copy_state(*arguments)
        return self._start(KEEPER, COPY, (), [*arguments])

    def serve(self, name: str) -> ProcessState:
        return self._start(f"mcp-{name}", PROGRAM, self.servers[name], [])

    def stop(self, name: str) -> ProcessState:
        process = self.processes.pop(name)
        state = process.state()
        if name != KEEPER:
            process.kill()
        elif process.leave():  # such as a database, which is the attempt's
            self.left.append(process)
        return state

    def close(self) -> None:
        for process in (*self.processes.values(), *self.left):
            process.kill()
        self.processes.clear()
        self.left.clear()
        if self.place is not None:
            self.place.delete()
            self.place = None

    def _starter(self, command: str, python: str) -> tuple[Argv, Argv]:
        if self.harbor:
            return self.harbor.starter(command)
        return starter_of(command, python, workspace=self.workspace)

    @property
    def _work(self) -> str:
        assert self.place is not None  # an attempt is prepared first
        return str(self.place.path / "work")

    def _folders(self, fresh: Iterable[str]) -> dict[str, str]:
        """Makes a folder for each variable in `fresh`, beside the agent's own. Returns these
        variables, and those of the user's downloads (envs.agents.agent_variables)."""
        assert self.place is not None  # an attempt is prepared first
        folders = {name: self.place.path / "caches" / name.lower() for name in fresh}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        shared = shared_folders(os.environ) if "XDG_CACHE_HOME" in folders else {}
        return shared | {name: str(folder) for name, folder in folders.items()}

    def _start(
        self,
        name: str,
        starter: Argv,
        argv: Argv,
        arguments: list[Any],
        *,
        grading: bool = False,
    ) -> ProcessState:
        """Starts a process. MAIN uses the attempt's folder, every other process a new subfolder.
        `grading`: it is the grader, which sees the whole task."""
        if name in self.processes:
            self.stop(name)
        assert self.place is not None  # an attempt is prepared first
        words, folder = self._words(argv), self.place
        if name != MAIN:
            folder = self.place.inner(name)
            folder.link("work", self._work)
        own = os.path.dirname((argv or starter)[0])
        path = os.pathsep.join([own, os.environ.get("PATH", os.defpath)])
        seen = self.opened if name != KEEPER and not grading else None
        of_task = seen.variables if seen else {}
        given = {"R3L_WORKSPACE": self._work, "PATH": path} | of_task | self.given
        text = json.dumps(self.task if grading else self.shown, ensure_ascii=False)
        if len(text.encode()) <= LONGEST_VARIABLE:
            given["R3L_TASK"] = text
        process = AgentProcess(
            starter,
            words,
            folder,
            child_environment(given, self.secret),
            "" if argv else json.dumps(arguments),
            pipes=name.startswith("mcp-"),
            lasting=name == KEEPER,
            fenced=self.fence and name != KEEPER,
            returns=grading,
            view=seen.view if seen else None,
        )
        self.processes[name] = process
        return process.state()

    def _words(self, argv: Argv) -> Argv:
        words = tuple(FIELD.sub(self._field, word) for word in argv)
        for word, template in zip(words, argv, strict=True):
            if (size := len(word.encode())) > LONGEST_ARGUMENT or "\0" in word:
                why = f"has {size} bytes, more than the {LONGEST_ARGUMENT} of any argument"
                raise EnvironmentFailed(
                    f"the argument {template!r:.80} {'holds a NUL' if chr(0) in word else why}; "
                    "have the agent read its task from $R3L_URL/r3l/task",
                    cause="argument_too_long",
                )
        return words

    def _field(self, found: re.Match[str]) -> str:
        """Returns a field of the task as text, or `{name}` unchanged if there is no such field."""
        value = self.shown.get(found[1], found[0])
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _copy_state(*arguments: Any) -> ProcessState:
    """Saves or restores a folder in this process. Returns what a separate process would report."""
    try:
        return ProcessState(exit=0, stdout=json.dumps(workspace_copy.run(*arguments)))
    except (SystemExit, OSError) as error:
        return ProcessState(exit=1, stderr=str(error))

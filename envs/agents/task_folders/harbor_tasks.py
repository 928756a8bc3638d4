"""The tasks of a folder in Harbor's format, as the environment `agent` plays them.

    command: harbor:NAME     Harbor's own runner plays them, in containers
    unsandboxed: true        agent and tests are processes of this machine, which see Harbor's paths

This module tells envs.agents.agent what to start, where and with what.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envs.agents.agent_checks import (
    CALL_FUNCTION,
    PROGRAM,
    error_of,
    interpreter,
    is_url,
    run_command,
    starter_of,
)
from envs.agents.agent_process import Argv
from envs.agents.agent_tasks import NAME, split_tasks
from envs.agents.task_folders.private_view import ATTEMPTS, View
from envs.agents.task_folders.task_folder import HarborTask, filled, read_task, task_folders
from envs.agents.task_folders.working_folder import copy_environment, planned
from envs.base import ListedTasks, Split
from r3l.errors import EnvironmentFailed, RecordError, UserError
from r3l.records import Task

RUNNER = "harbor:"
ORACLE, NOTHING = "harbor:oracle", "harbor:nop"
"""Commands that play the task's own solution, and nothing at all, with either kind of runner."""
SOLVE = "import os; f = '/solution/solve.sh'; os.chmod(f, 0o755); os.execlp('sh', 'sh', '-c', f)"
"""What runs a solution as Harbor does, in Python."""
HERE = Path(__file__).parent
PLAY = HERE / "harbor_play.py"
RUN_TESTS = HERE / "run_tests.py"
PRIVATE_VIEW = HERE / "private_view.py"
NO_SETTINGS = "{}"
START_S = 60.0
"""Seconds that a grader may take in addition to its tests, which it copies into memory."""
RUNNER_S = 120.0
"""Time limit for checking Harbor's runner, seconds."""


def is_folder(tasks: str) -> bool:
    return bool(tasks) and Path(tasks).expanduser().is_dir()


def listed(tasks: str) -> ListedTasks:
    """Lists the tasks of a folder. Raises UserError for a task that cannot be played."""
    found: list[tuple[Split | None, Task]] = []
    for number, path in enumerate(task_folders(tasks), 1):
        try:
            found.append((None, Task(path.name, NAME, number, {"task": _shown(read_task(path))})))
        except RecordError as error:
            raise UserError(f"env agent: task {path}: {error}") from None
    return split_tasks(found)


def _shown(task: HarborTask) -> dict[str, Any]:
    return {"id": task.folder.name, "instruction": task.instruction}


@dataclass(frozen=True)
class HarborTasks:
    """How the tasks of a folder are played. `root`: the folder. `agent`: the name of an agent of
    Harbor, or "" for the user's own command. `local`: without containers. `settings`: settings of
    Harbor's trials."""

    root: Path
    folders: Mapping[str, Path]
    agent: str
    local: bool
    python: str
    settings: Mapping[str, Any]

    @property
    def solves(self) -> bool:
        """Whether the task's own solution is played."""
        return self.agent == ORACLE.removeprefix(RUNNER)

    @property
    def grader(self) -> Argv:
        """The command that runs the grader. The tests also find the grader's interpreter first."""
        if not self.local:
            return (*PROGRAM, f"{RUN_TESTS}:stored_result")
        return (interpreter(self.python), str(CALL_FUNCTION), f"{RUN_TESTS}:grade")

    def starter(self, command: str) -> tuple[Argv, Argv]:
        """Returns the starter and the program (envs.agents.agent_checks.starter_of)."""
        if not self.local:
            return (interpreter(self.python), str(CALL_FUNCTION), f"{PLAY}:play"), ()
        if command in (ORACLE, NOTHING):
            return PROGRAM, (interpreter(self.python), "-c", SOLVE if command == ORACLE else "")
        starter, argv = starter_of(command, self.python)
        if inside := [word for word in argv if word.startswith(f"{self.root}{os.sep}")]:
            raise UserError(
                f"env agent: command {command!r}: {inside[0]} is in the folder of tasks, which the "
                "agent does not see; put the agent elsewhere"
            )
        return starter, argv

    def opened(
        self, task: Mapping[str, Any], place: Path, environ: Mapping[str, str]
    ) -> "OpenedTask":
        """Prepares an attempt at a task. `place`: the attempt's own folder. `environ`: the
        variables that fill the task's own. Raises EnvironmentFailed if the task has changed since
        it was listed."""
        name = str(task.get("id"))
        with self.changes(name):
            if name not in self.folders:
                raise UserError("it was not there at the start")
            found = read_task(self.folders[name])
            if self.local and found.containers:
                raise UserError(f"it needs containers, because {found.containers}")
            return OpenedTask(self, found, place, environ)

    @contextmanager
    def changes(self, name: str) -> Iterator[None]:
        """Within the block, fails the attempt with a named cause if its task can no longer be
        read."""
        try:
            yield
        except (UserError, OSError, ValueError, RecursionError) as error:
            raise EnvironmentFailed(
                f"env agent: task {name} of {self.root} can no longer be played: {error}",
                cause="task_changed",
            ) from None

    def with_path(self, variables: dict[str, str]) -> dict[str, str]:
        """Puts the interpreter's folder in front of a given PATH."""
        if "PATH" not in variables:
            return variables
        own = os.path.dirname(interpreter(self.python))
        return variables | {"PATH": f"{own}{os.pathsep}{variables['PATH']}"}


@dataclass(frozen=True)
class OpenedTask:
    """A task that is being played. `place`: the attempt's own folder, with work (the agent's) and
    logs. `environ`: the variables that fill the task's own, without secrets."""

    tasks: HarborTasks
    task: HarborTask
    place: Path
    environ: Mapping[str, str]

    def fill(self, work: Path) -> None:
        """Copies the files of the task's environment to the agent's folder."""
        (self.place / "logs" / "agent").mkdir(parents=True)
        (self.place / "logs" / "artifacts").mkdir()
        if self.tasks.local:
            with self.tasks.changes(self.task.folder.name):
                copy_environment(self.task, work)

    @property
    def limit_s(self) -> float | None:
        """The agent's time limit; None if the task sets none, or if Harbor's runner keeps it."""
        return self.task.agent_s if self.tasks.local else None

    @property
    def grader_s(self) -> float | None:
        """The grader's time limit; None if Harbor's runner keeps it."""
        return self.task.tests_s + START_S if self.tasks.local else None

    @property
    def asked(self) -> list[Any]:
        """What the starter's function gets in addition to the task."""
        if self.tasks.local:
            return []
        given = {"folder": str(self.task.folder), "agent": self.tasks.agent}
        return [given | {"settings": dict(self.tasks.settings), "result": str(self._result)}]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of agent, tools and tests."""
        if not self.tasks.local:
            return {}
        own = self._filled(self.task.variables)
        if self.tasks.solves:
            own |= self._filled(self.task.solution_variables)
        return self.tasks.with_path(own) | {"R3L_WORKSPACE": self.task.workdir}

    def _filled(self, variables: Mapping[str, str]) -> dict[str, str]:
        with self.tasks.changes(self.task.folder.name):
            return filled(variables, self.environ, f"task {self.task.folder}")

    @property
    def view(self) -> View | None:
        """What the agent and its tools see."""
        if not self.tasks.local:
            return None
        copies = [("", "/logs/verifier")]
        if self.tasks.solves:
            if not self.task.solution.is_file():
                raise EnvironmentFailed("it has no solution/solve.sh", cause="no_solution")
            copies.append((str(self.task.solution.parent), "/solution"))
        return self._view(copies)

    @property
    def graded(self) -> list[Any]:
        """What the grader gets."""
        if not self.tasks.local:
            return [str(self._result)]
        with self.tasks.changes(self.task.folder.name):
            read_task(self.task.folder)  # its tests may have gone since
        tests = self.tasks.with_path(self._filled(self.task.tests_variables))
        copies = [("", "/logs/verifier"), (str(self.task.folder / "tests"), "/tests")]
        return [
            {
                "view": self._view(copies),
                "variables": self.variables | tests,
                "seconds": self.task.tests_s,
            }
        ]

    @property
    def _result(self) -> Path:
        return self.place / "result.json"

    def _view(self, copies: list[tuple[str, str]]) -> View:
        root, caches = self.place / "view", self.place / "caches"
        for folder in (root, caches):
            folder.mkdir(exist_ok=True)
        logs = [
            (str(self.place / "logs" / name), f"/logs/{name}") for name in ("agent", "artifacts")
        ]
        return View(
            root=str(root),
            binds=[
                (str(self.place / "work"), self.task.workdir),
                (str(caches), str(caches)),
                *logs,
            ],
            copies=copies,
            hidden=[str(self.tasks.root), *repositories(self.tasks.root)],
            temporary=_temporary(self.place.parent),
            folder=self.task.workdir,
        )


def repositories(folder: Path) -> list[str]:
    """Returns the folders in which Git keeps earlier contents of a folder, such as solutions."""
    found = []
    for git in (outer / ".git" for outer in (folder, *folder.parents)):
        with suppress(OSError, ValueError):
            if git.is_file():  # of a further working tree
                git = git.parent / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
                shared = git / "commondir"
                git = git / shared.read_text(encoding="utf-8").strip() if shared.exists() else git
            if git.is_dir():
                found.append(os.path.realpath(git))
    return found


def _temporary(own: Path) -> list[str]:
    """Returns the folders that hold the folders of attempts, the outer ones first. `own`: the
    folder for this process's attempts. A worker has one of its own, inside that of the machine."""
    outer = own.parent if own.name.startswith(ATTEMPTS) else own
    named = ("/tmp", os.environ.get("TMPDIR", "/tmp"), str(outer), str(own))
    found = {os.path.realpath(folder) for folder in named}
    return sorted(folder for folder in found if folder != "/")


def harbor_tasks(
    tasks: str,
    command: str,
    python: str,
    *,
    unsandboxed: bool,
    settings: Mapping[str, Any] | None,
    others: Mapping[str, object],
) -> HarborTasks | None:
    """Returns how the tasks of a folder are played; None if `tasks` is not a folder. `others`:
    options of the agent that cannot be combined with such tasks. Raises UserError, before anything
    starts."""
    if not is_folder(tasks):
        if unsandboxed or settings or command.startswith(RUNNER):
            option = "unsandboxed" if unsandboxed else "harbor" if settings else command
            raise UserError(
                f"env agent: {option} is for task folders in Harbor's format, but tasks is "
                f"{tasks!r:.200}; name a folder"
            )
        return None
    for option in (name for name, value in others.items() if value):
        raise UserError(
            f"env agent: {option}: tasks {tasks} have an environment and tests of their own; leave "
            f"{option} out"
        )
    return _played(tasks, command, python, unsandboxed, json.dumps(dict(settings or {})))


def check_sandbox(tasks: str, command: str, unsandboxed: bool) -> None:
    """Raises UserError if a command would play tasks on this machine without the user's consent."""
    if not command.startswith(RUNNER) and not unsandboxed:
        raise UserError(
            f"env agent: tasks {tasks}: their tests would run as your user, and so would the "
            "agent; allow that with unsandboxed=true, or play them in Harbor's containers with "
            f"command={RUNNER}NAME"
        )


@cache
def _played(tasks: str, command: str, python: str, unsandboxed: bool, settings: str) -> HarborTasks:
    what, agent = f"env agent: tasks {tasks}", command.removeprefix(RUNNER)
    own = "" if agent == command else agent
    if command == RUNNER:
        raise UserError(f"{what}: command {RUNNER} names no agent; write {RUNNER}NAME")
    check_sandbox(tasks, command, unsandboxed)
    if unsandboxed and own and command not in (ORACLE, NOTHING):
        raise UserError(
            f"{what}: command {command} needs Harbor's containers; leave unsandboxed out"
        )
    if unsandboxed and settings != NO_SETTINGS:
        raise UserError(
            f"{what}: harbor is only for Harbor's runner; leave out harbor or unsandboxed"
        )
    if is_url(command):
        raise UserError(
            f"{what}: command {command}: a server does not see a task's files; name a program or a "
            "function"
        )
    root = Path(tasks).expanduser().resolve()
    found = [read_task(path) for path in task_folders(tasks)]
    folders = {task.folder.name: task.folder for task in found}
    played = HarborTasks(root, folders, own, unsandboxed, python, json.loads(settings))
    if unsandboxed:
        _check_local(what, found)
    else:
        _check_runner(what, played)
    return played


def _check_local(what: str, tasks: Sequence[HarborTask]) -> None:
    """Raises UserError unless processes of this machine can play the tasks."""
    ended = run_command(f"tasks: {PRIVATE_VIEW}", [sys.executable, str(PRIVATE_VIEW)])
    if ended.returncode:
        raise UserError(
            f"{what}: users of this machine cannot make mount namespaces ({error_of(ended)}), so "
            f"Harbor's paths such as /app are missing; play the tasks with command={RUNNER}NAME"
        )
    for task in tasks:
        if task.containers:
            raise UserError(
                f"env agent: task {task.folder}: needs containers, because {task.containers}; "
                f"leave it out, or play it with command={RUNNER}NAME"
            )
        planned(task)
        for variables in (task.variables, task.tests_variables, task.solution_variables):
            filled(variables, os.environ, f"env agent: task {task.folder}")


def _check_runner(what: str, played: HarborTasks) -> None:
    """Raises UserError unless Harbor's runner can be used."""
    asked = json.dumps({"agent": played.agent, "settings": dict(played.settings)})
    argv = [interpreter(played.python), str(PLAY), asked, "check"]
    ended = run_command("Harbor's runner", argv, RUNNER_S)
    if ended.returncode:
        raise UserError(f"{what}: Harbor's runner: {error_of(ended)}")

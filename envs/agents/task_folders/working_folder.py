"""Fills the folder that stands for a task's working directory, as its Dockerfile says.

    environment/, Dockerfile, .dockerignore ─► a plan: each path with its source ─► the folder

The plan is made before anything is written. A target behind a link is refused, so nothing is
written outside of the folder.
"""

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from envs.agents.task_folders.dockerfile import Copy
from envs.agents.task_folders.task_folder import HarborTask
from r3l.errors import UserError
from r3l.files.user_file import read_text

IGNORED = ".dockerignore"
HERE = PurePosixPath(".")
_TOKENS = re.compile(r"\*\*/?|[*?]|\[[^]]+\]|.", re.S)
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass
class Plan:
    """What a working folder gets. `folders`: path of each folder, with the folder whose mode it
    takes; None: a default mode. `files`: path of each file or link, with its source and the mode
    that a file gets; None: the source's mode. Paths are relative to the working folder, outer ones
    first."""

    what: str
    folders: dict[PurePosixPath, Path | None] = field(default_factory=lambda: {HERE: None})
    files: dict[PurePosixPath, tuple[Path, int | None]] = field(default_factory=dict)

    def add(self, source: Path, to: PurePosixPath, mode: int | None, ignored: "Ignored") -> None:
        """Adds a file, a link or all of a folder. Raises UserError if that cannot be copied."""
        for folder in reversed(to.parents):
            self._add_folder(folder, None)
        if source.is_dir() and not source.is_symlink():
            self._add_folder(to, source)
            for inner in sorted(source.iterdir()):
                if not ignored.has(inner):
                    self.add(inner, to / inner.name, mode, ignored)
        elif to in self.folders or (to in self.files and self.files[to][0].is_symlink()):
            raise self._refused(to)
        else:
            self.files[to] = source, None if source.is_symlink() else mode

    def _add_folder(self, folder: PurePosixPath, source: Path | None) -> None:
        if folder in self.files or ".." in folder.parts or folder.is_absolute():
            raise self._refused(folder)
        self.folders[folder] = self.folders.get(folder) or source

    def _refused(self, path: PurePosixPath) -> UserError:
        return UserError(
            f"{self.what}: environment/ puts something else at or behind {path}, which is a link, "
            "another kind of file or outside of the working directory; give one of them another "
            "name"
        )


class Ignored:
    """The paths of an environment that its .dockerignore leaves out."""

    def __init__(self, folder: Path, what: str) -> None:
        self.folder, self.rules = folder, list[tuple[re.Pattern[str], bool]]()
        if not (folder / IGNORED).is_file():
            return
        text = read_text(folder / IGNORED, f"{what}: environment/{IGNORED}", "correct it")
        for line in (line.strip() for line in text.splitlines()):
            if line and not line.startswith("#"):
                pattern = os.path.normpath(line.removeprefix("!").strip()).lstrip("/")
                self.rules.append((_expression(pattern), not line.startswith("!")))

    def has(self, path: Path) -> bool:
        inner, found = path.relative_to(self.folder), False
        names = [str(each) for each in (inner, *inner.parents)]
        for rule, leaves_out in self.rules:
            if any(map(rule.fullmatch, names)):
                found = leaves_out
        return found


def _expression(pattern: str) -> re.Pattern[str]:
    """Returns the expression of a pattern of a .dockerignore."""
    parts = _TOKENS.findall(pattern)
    known = [_WILD.get(part) or (part if len(part) > 1 else re.escape(part)) for part in parts]
    return re.compile("".join(known))


def planned(task: HarborTask) -> Plan:
    """Returns what a task's working folder gets. Without a Dockerfile, that is all of environment/.
    Raises UserError if a source is missing, or a target is behind a link."""
    plan, source = Plan(f"env agent: task {task.folder}"), task.folder / "environment"
    try:
        if task.image is None:
            if source.is_dir():
                plan.add(source, HERE, None, Ignored(task.folder, ""))
            return plan
        ignored = Ignored(source, plan.what)
        for each in task.image.copies:
            _add_copy(plan, each, source, task.workdir, ignored)
    except UserError:
        raise
    except (re.error, ValueError, NotImplementedError) as error:  # of a pattern
        raise UserError(f"{plan.what}: environment/Dockerfile or {IGNORED}: {error}") from None
    return plan


def _add_copy(plan: Plan, copy: Copy, source: Path, workdir: str, ignored: Ignored) -> None:
    for name in copy.sources:
        inner = os.path.normpath(name.strip("/") or ".")
        found = [source] if inner == "." else sorted(source.glob(inner))
        found = [path for path in found if path == source or not ignored.has(path)]
        if not found or inner.startswith(".."):
            raise UserError(
                f"{plan.what}: environment/Dockerfile copies {name}, which is not in environment/ "
                f"or in its {IGNORED}; add it there"
            )
        to = PurePosixPath(os.path.relpath(copy.target, workdir))
        into = copy.target.endswith("/") or len(found) > 1 or to in plan.folders
        for path in found:
            if not (real := path.resolve()).is_relative_to(source):
                raise UserError(
                    f"{plan.what}: environment/{inner} is a link that leads out of environment/"
                )
            if real.is_dir():
                plan.add(real, to, copy.mode, ignored)
            else:
                plan.add(path, to / path.name if into else to, copy.mode, ignored)


def copy_environment(task: HarborTask, work: Path) -> None:
    """Fills an empty folder. Raises UserError or OSError."""
    plan = planned(task)
    for folder in plan.folders:
        (work / folder).mkdir(exist_ok=True)
    for path, (source, mode) in plan.files.items():
        shutil.copy2(source, work / path, follow_symlinks=False)
        if mode is not None:
            (work / path).chmod(mode)
    for folder, given in reversed(plan.folders.items()):
        if given is not None and folder != HERE:
            shutil.copystat(given, work / folder)

"""Runs the user's command on each checkpoint and on the final models: `learner.on_checkpoint`.

    checkpoints/step-000050 ─► waits, the newest one ─► command, one at a time ─► may be removed

It runs next to training. A failed or slow command causes a notice, but never ends the run.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL

import psutil

from r3l.errors import UserError
from r3l.process.notices import notice

ROUND_S = 0.2
STOPPED_S = 5.0
"""How long a run waits once it was asked to stop, in seconds."""


def check(command: str, *, here: bool = True) -> None:
    """Refuses a command that cannot be parsed or has an unknown placeholder. With `here`, also
    refuses a program that does not exist on this machine. "" means no command."""
    what = f"learner.on_checkpoint {command!r:.200}"
    try:
        program = arguments(command, Path("step-000001"), 1)[0] if command else ""
    except (LookupError, AttributeError, ValueError) as error:
        raise UserError(
            f"{what}: cannot be parsed ({error}); the placeholders are {{folder}}, {{name}} and "
            "{step}; write any other brace twice"
        ) from None
    if program and here and shutil.which(program) is None:
        raise UserError(f"{what}: there is no program {program!r} on this machine; install it")


def arguments(command: str, folder: Path, step: int) -> list[str]:
    """Returns the program and its arguments. Placeholders are filled in after the line is split, so
    a space in a path does not split it."""
    values = {"folder": str(folder), "name": folder.name, "step": step}
    return [word.format_map(values) for word in shlex.split(command)]


class CheckpointCommand:
    """Runs a command on one folder after the other, in a thread; each run may take `limit_s`.

    `failed`: how many commands failed.
    """

    def __init__(self, command: str, limit_s: float) -> None:
        self.failed = 0
        self._command, self._limit_s = command, limit_s
        self._thread = ThreadPoolExecutor(1, "on-checkpoint")
        self._jobs: dict[Path, Future[None]] = {}
        self._closed = False

    def submit(self, folder: Path, step: int) -> None:
        """Queues the command for a folder. It replaces the waiting command of an earlier step, if
        any."""
        for earlier in self.busy():
            if _kind(earlier) == _kind(folder):
                self._jobs[earlier].cancel()  # unless it is running
        self._jobs[folder] = self._thread.submit(self._execute, folder.absolute(), step)

    def busy(self) -> list[Path]:
        """Returns the folders whose command is running or waiting; they must not be removed."""
        return [folder for folder, job in list(self._jobs.items()) if not job.done()]

    def finish(self, stopped: Callable[[], bool]) -> None:
        """Waits at most `limit_s` in total for the remaining commands, then kills them.

        `stopped` is called every ROUND_S. Once it returns true, the commands have STOPPED_S left.
        """
        ends = time.monotonic() + self._limit_s
        if left := self.busy():
            notice(f"on_checkpoint: the run waits up to {self._limit_s:g} s for {_names(left)}")
        while (left := self.busy()) and time.monotonic() < ends:
            if stopped():
                ends = min(ends, time.monotonic() + STOPPED_S)
            wait([self._jobs[folder] for folder in left], ROUND_S)
        if left:
            notice(f"on_checkpoint: the run ends before the command on {_names(left)} has ended")
        self._closed = True
        self._thread.shutdown(cancel_futures=True)

    def _execute(self, folder: Path, step: int) -> None:
        try:
            why = self._failure(arguments(self._command, folder, step))
        except OSError as error:
            why = str(error)
        if why:
            self.failed += 1
            notice(f"on_checkpoint: failed on {folder.name}: {why}; see logs/learner.log")

    def _failure(self, line: list[str]) -> str:
        """Runs a command; returns why it failed, or ""."""
        process, ends = psutil.Popen(line, stdin=DEVNULL), time.monotonic() + self._limit_s
        while process.poll() is None and time.monotonic() < ends and not self._closed:
            time.sleep(ROUND_S)
        if process.poll() is not None:
            return f"exit code {process.returncode}" if process.returncode else ""
        for running in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                running.kill()
        process.wait()
        return "killed" if self._closed else f"killed after {self._limit_s:g} s"


def _kind(folder: Path) -> str:
    """Returns the kind of a folder: step, model or best."""
    return folder.name.partition("-")[0]


def _names(folders: list[Path]) -> str:
    return ", ".join(folder.name for folder in folders)

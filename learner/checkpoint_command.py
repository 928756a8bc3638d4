"""Runs the command in `learner.on_checkpoint` on each checkpoint and on the final models.

One command runs at a time, next to training. A new checkpoint replaces an older one that still
waits. A failed or slow command causes a notice, but never ends the run.
"""

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
from r3l.notices import notice

ROUND_S = 0.2
STOPPED_S = 5.0
"""Seconds that commands may still run after the run was asked to stop."""


def check_command(command: str, *, here: bool = True) -> None:
    """Raises UserError if a command cannot be parsed. With `here`, the program must also exist on
    this machine. "" means no command."""
    what = f"learner.on_checkpoint {command!r:.200}"
    try:
        program = arguments(command, Path("step-000001"), 1)[0] if command else ""
    except (LookupError, AttributeError, ValueError) as error:
        raise UserError(
            f"{what}: cannot be parsed ({error}); the placeholders are {{folder}}, {{name}} and "
            "{step}; for a brace in the command itself, write {{ or }}"
        ) from None
    if program and here and shutil.which(program) is None:
        raise UserError(f"{what}: there is no program {program!r} on this machine; install it")


def arguments(command: str, folder: Path, step: int) -> list[str]:
    """Returns the program and its arguments, with the placeholders filled in. The folder's path
    stays one argument even if it contains spaces."""
    values = {"folder": str(folder), "name": folder.name, "step": step}
    return [word.format_map(values) for word in shlex.split(command)]


class CheckpointCommand:
    """Runs a command on one folder at a time, in a thread.

    `limit_s`: seconds after which a running command is killed. `failed`: how often it failed.
    """

    def __init__(self, command: str, limit_s: float) -> None:
        self.failed = 0
        self._command, self._limit_s, self._ends = command, limit_s, float("inf")
        self._thread = ThreadPoolExecutor(1, "on-checkpoint")
        self._jobs: dict[Path, Future[None]] = {}

    def submit(self, folder: Path, step: int) -> None:
        """Queues the command for a folder. A checkpoint replaces any checkpoint in the queue."""
        for earlier in self.busy():
            if earlier.name.startswith("step-") and folder.name.startswith("step-"):
                self._jobs[earlier].cancel()  # unless it is running
        self._jobs[folder] = self._thread.submit(self._execute, folder.absolute(), step)

    def busy(self) -> list[Path]:
        """Returns the folders whose command is running or waiting; they must not be removed."""
        return [folder for folder, job in list(self._jobs.items()) if not job.done()]

    def finish(self, stopped: Callable[[], bool]) -> None:
        """Waits at most `limit_s` for all remaining commands, then kills them. Once `stopped`
        returns true, the wait ends within STOPPED_S."""
        self._ends = time.monotonic() + self._limit_s
        if left := self.busy():
            names = ", ".join(folder.name for folder in left)
            notice(f"on_checkpoint: waiting up to {self._limit_s:g} s for the command on {names}")
        while (left := self.busy()) and time.monotonic() < self._ends:
            if stopped():
                self._ends = min(self._ends, time.monotonic() + STOPPED_S)
            wait([self._jobs[folder] for folder in left], ROUND_S)
        if left:
            names = ", ".join(folder.name for folder in left)
            notice(f"on_checkpoint: the run ends before the command on {names} has ended")
        self._thread.shutdown(cancel_futures=True)

    def _execute(self, folder: Path, step: int) -> None:
        try:
            why = self._failure(psutil.Popen(arguments(self._command, folder, step), stdin=DEVNULL))
        except OSError as error:
            why = str(error)
        if why:
            self.failed += 1
            notice(f"on_checkpoint: failed on {folder.name}: {why}; see logs/learner.log")

    def _failure(self, process: psutil.Popen) -> str:
        """Waits for a command, and kills it at its deadline. Returns why it failed, or ""."""
        ends = time.monotonic() + self._limit_s
        while process.poll() is None and time.monotonic() < min(ends, self._ends):
            time.sleep(ROUND_S)
        if process.poll() is not None:
            return f"exit code {process.returncode}" if process.returncode else ""
        for running in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                running.kill()
        process.wait()
        return f"killed after {self._limit_s:g} s" if time.monotonic() > ends else "killed"

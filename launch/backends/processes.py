"""Starts and ends the processes of a run, each in a session and with a log file of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from learner.run_files import STACKS
from r3l.process.keeper import DEADLINE_S, Kept, end_in_order, tell_keeper
from r3l.process.memory import STEADY_MEMORY

log = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
TAIL_BYTES = 1 << 20
NOISE = re.compile(
    r"nanobind: |.*nanobind\.readthedocs| - (leaked|\.\.\. skipped) |"
    r"Exception ignored (in|on|while)|.*resource_tracker|"
    r".*destroy_process_group\(\)|.*(Deprecation|Future)Warning: |  warnings\.warn\(|\s*$"
)
"""Lines that libraries write when any process ends, and that explain nothing."""
OWN = re.compile(r"(?:\S+: )?r3l-(?:buffer|learner|actor): (.+)")
"""What a command says before it ends by itself."""
STACKS_S = 2.0  # enough for many threads, or a process that was swapped out
KILLED_S = 5.0  # until a killed process has ended, unless it waits in the kernel


@dataclass(kw_only=True)
class Child(Kept):
    """One started command.

    `log_from`: offset of its own output in its log file. `killed_for`: why this process killed it,
    if it did.
    """

    log: Path
    process: subprocess.Popen[bytes]
    log_from: int = 0
    killed_for: str = ""

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self.exit_code is not None

    def said(self, word: str) -> str | None:
        """The rest of the first line of its output that starts with `word`, or with the machine's
        name and `word` if pdsh passed it on; None if there is no such line."""
        if not self.log.exists():
            return None
        line = re.compile(rb"(?:\S+: )?" + re.escape(word.encode()) + rb"(.*)")
        with self.log.open("rb") as output:
            output.seek(self.log_from)
            found = next(filter(None, map(line.match, output)), None)
        return None if found is None else found[1].decode("utf-8", errors="replace").strip()

    def ready(self, word: str) -> bool:
        """Whether a line of its output starts with `word`."""
        return self.said(word) is not None

    def last_lines(self, count: int) -> list[str]:
        """The end of its output, at most `count` lines and TAIL_BYTES, without NOISE."""
        return [line for line in self._tail() if not NOISE.match(line)][-count:]

    def reason(self) -> str:
        """Why it ended: `killed_for`, or in its own words the line of its command, or else of the
        exception that ended it, or ""."""
        if self.killed_for:
            return self.killed_for
        lines = self._tail()
        for line in reversed(lines):
            if own := OWN.match(line):
                return own[1]
        raised = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent")]
        after = lines[raised[-1] + 1 :] if raised else []
        if self.exit_code == -signal.SIGBUS:
            return "SIGBUS, a page of a file could not be kept: is a disk or /dev/shm full?"
        return next((line for line in after if line and not line[0].isspace()), "")

    def _tail(self) -> list[str]:
        if not self.log.exists():
            return []
        with self.log.open("rb") as output:
            output.seek(max(self.log_from, self.log.stat().st_size - TAIL_BYTES))
            return output.read().decode("utf-8", errors="replace").splitlines()

    @property
    def stopped(self) -> bool:
        """Whether the process does not run because of SIGSTOP or a debugger."""
        try:
            status = psutil.Process(self.process.pid).status()
        except psutil.NoSuchProcess:
            return False
        return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

    def show_stacks(self) -> None:
        """Make the workers write their threads' stacks, even those that are stopped."""
        for process in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(STACKS)
                process.send_signal(signal.SIGCONT)
        time.sleep(STACKS_S)

    def kill(self) -> None:
        """Kill the process and everything it started, even if it has ended itself."""
        super().kill()
        try:
            self.process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            log.warning("%s (process %d) was killed but has not ended: it waits in the kernel "
                        "for a disk or a GPU", self.name, self.process.pid)  # fmt: skip


@dataclass
class Children:
    """All processes of a run, in the order of their start."""

    logs: Path
    members: list[Child] = field(default_factory=list)
    impatient: bool = False
    """Whether `stop` kills at once; a signal handler may set it while `stop` waits."""
    _keeper: subprocess.Popen[bytes] | None = None

    def start(
        self,
        name: str,
        command: list[str],
        env: dict[str, str] | None = None,
        worker: tuple[str, ...] = (),
        at_once: bool = False,
    ) -> Child:
        """Start `command` with its output appended to `<name>.log`. If a member of that name has
        ended, the processes it left are killed and the new one takes its place. `worker`,
        `at_once`: see `Kept`."""
        log = self.logs / f"{name}.log"
        place = next((i for i, child in enumerate(self.members) if child.name == name), None)
        if place is not None:
            self.members[place].kill()
        pipe = self.keep()
        with log.open("ab") as output:
            begins = output.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(env),
                start_new_session=True,
                # In the child: the keeper knows it even if this process is killed right now.
                preexec_fn=lambda: tell_keeper(pipe, name, os.getpid(), worker, at_once),
            )
        child = Child(name, process.pid, worker, at_once, log=log, process=process, log_from=begins)
        if place is None:
            self.members.append(child)
        else:
            self.members[place] = child
        return child

    def keep(self) -> int:
        """Start the keeper if it does not run; returns the descriptor of the pipe to it."""
        known = self._keeper
        if known is None or known.poll() is not None:
            with (self.logs / "keeper.log").open("ab") as output:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-P", "-m", "r3l.process.keeper", str(self.logs)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_environment(),
                    start_new_session=True,
                )
            if known is not None:
                log.warning("the keeper ended with exit code %s; started again", known.returncode)
            for child in self.members:
                self.tell(child)
        assert self._keeper is not None and self._keeper.stdin is not None
        return self._keeper.stdin.fileno()

    def tell(self, child: Child) -> None:
        """Name a process to the keeper that this one did not start."""
        tell_keeper(self.keep(), child.name, child.pid, child.worker, child.at_once)

    def dead(self) -> list[Child]:
        """Members that have ended."""
        return [child for child in self.members if child.ended]

    def stop(self, deadline_s: float = DEADLINE_S) -> list[str]:
        """End everything, the keeper too; returns the names of those that had to be killed."""
        killed = end_in_order(self.members, deadline_s, lambda: self.impatient)
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.communicate()
            self._keeper = None
        return killed


def _environment(own: dict[str, str] | None = None) -> dict[str, str]:
    """The environment variables of a child."""
    given = STEADY_MEMORY | os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": import_path()}
    return given | (own or {})


def import_path() -> str:
    """PYTHONPATH for a child that leaves its working folder out: this code first."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

"""Child processes: each has its own session and log file and is ended as a process group."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from learner.run_files import STACKS
from r3l.process.memory import STEADY_MEMORY

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).parents[2]
TAIL_BYTES = 1 << 20
LAST_S = 2.0  # for the buffer to close its store, even if the others used up the deadline
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


@dataclass
class Child:
    """One started command.

    `worker`: arguments that identify the working processes (on this machine) if the command is a
    launcher, which would kill them instead of letting them end; ssh may run in between. `log_from`:
    offset of its own output in its log file. `killed_for`: why this process killed it, if it did.
    """

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    worker: tuple[str, ...] = ()
    log_from: int = 0
    killed_for: str = ""

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

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
                return own[1].removesuffix("; its last lines:")  # of an engine; they follow
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

    def terminate(self) -> None:
        """Ask the process, or the workers it launched, to end, even those that are stopped."""
        if self.exit_code is None:
            for process in self._workers() or [psutil.Process(self.process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGTERM)
                    process.send_signal(signal.SIGCONT)

    def show_stacks(self) -> None:
        """Make the workers write their threads' stacks, even those that are stopped."""
        for process in self._workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(STACKS)
                process.send_signal(signal.SIGCONT)
        time.sleep(STACKS_S)

    def kill(self) -> None:
        """Kill the process and everything it started, even if it has ended itself."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            log.warning("%s (process %d) was killed but has not ended: it waits in the kernel "
                        "for a disk or a GPU", self.name, self.process.pid)  # fmt: skip

    def _workers(self) -> list[psutil.Process]:
        found = psutil.process_iter(["cmdline"]) if self.worker else ()
        return [p for p in found if _contains(p.info["cmdline"] or [], self.worker)]


def _contains(arguments: list[str], part: tuple[str, ...]) -> bool:
    starts = range(len(arguments) - len(part) + 1)
    return any(tuple(arguments[at : at + len(part)]) == part for at in starts)


@dataclass
class Children:
    """All processes of a run, in the order of their start."""

    logs: Path
    members: list[Child] = field(default_factory=list)
    impatient: bool = False
    """Whether `stop` kills at once; a signal handler may set it while `stop` waits."""

    def start(
        self,
        name: str,
        command: list[str],
        env: dict[str, str] | None = None,
        worker: tuple[str, ...] = (),
        death_signal: int = signal.SIGTERM,
    ) -> Child:
        """Start `command` with its output appended to `<name>.log`. If a member of that name has
        ended, the processes it left are killed and the new one takes its place. `death_signal`:
        what it is sent if this process is killed."""
        log = self.logs / f"{name}.log"
        place = next((i for i, child in enumerate(self.members) if child.name == name), None)
        if place is not None:
            self.members[place].kill()
        with log.open("ab") as output:
            begins = output.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **STEADY_MEMORY,
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONPATH": import_path(),
                    **(env or {}),
                },
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid(), death_signal),
            )
        child = Child(name, log, process, worker, begins)
        if place is None:
            self.members.append(child)
        else:
            self.members[place] = child
        return child

    def dead(self) -> list[Child]:
        """Members that have ended."""
        return [child for child in self.members if child.exit_code is not None]

    def stop(self, deadline_s: float = 20.0) -> list[str]:
        """End everything: terminate the members in reverse order and the first (the buffer, which
        the others still talk to) last, then kill those left at the deadline, or as soon as
        `impatient` is set. Returns their names."""
        end = time.monotonic() + deadline_s
        *later, first = reversed(self.members) if self.members else [None]
        for child in later:
            if child is not None:
                child.terminate()
        self._wait([c for c in later if c is not None], end)
        if first is not None:
            first.terminate()
            self._wait([first], max(end, time.monotonic() + LAST_S))
        killed = [child.name for child in self.members if child.exit_code is None]
        for child in self.members:
            child.kill()
        return killed

    def _wait(self, children: list[Child], end: float) -> None:
        while any(child.exit_code is None for child in children) and time.monotonic() < end:
            if self.impatient:
                return
            time.sleep(0.05)


def import_path() -> str:
    """PYTHONPATH for a child that leaves its working folder out: this code first."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def end_with_parent(parent: int, death_signal: int) -> None:
    """Send this process `death_signal` when its `parent` ends (Linux); if it has ended, end now."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:  # it ended before the call above
        os._exit(1)

"""Starts and ends a run's processes, each with its own session and log file."""

import contextlib
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from launch.backends.run_keeper import KeptProcess, end_in_order, tell_keeper
from learner.exit_codes import STACKS
from r3l.errors import R3LError, UserError
from r3l.files.own_packages import import_path, module_command
from r3l.run.files.run_folder import ProcessStatus, RunFolder
from r3l.run.process.last_heartbeat import LastHeartbeat
from r3l.run.process.memory import STEADY_MEMORY, oom_kills

log = logging.getLogger(__name__)

TAIL_BYTES = 1 << 20
NOISE = re.compile(
    r"nanobind: |.*nanobind\.readthedocs| - (leaked|\.\.\. skipped) |"
    r"Exception ignored (in|on|while)|.*resource_tracker|"
    r".*destroy_process_group\(\)|.*(Deprecation|Future)Warning: |  warnings\.warn\(|\s*$"
)
"""Matches lines that libraries print whenever a process ends. They explain nothing."""
OWN = re.compile(r"(?:\S+: )?r3l-(?:buffer|learner|actor): (.+)")
"""Matches the line in which one of r3l's commands reports why it ended."""
OUTER_JOB = re.compile(
    r"((LOCAL_|GROUP_|ROLE_|NODE_|CROSS_)?(RANK|SIZE|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|"
    r"(OMPI|PMI|PMIX|MV2|TORCHELASTIC|DEEPSPEED|DLTS)_.*)"
)
"""Environment variables in which torchrun, DeepSpeed and MPI pass a process its rank."""
LONGEST_TMPDIR = 64  # bytes; a socket's path has at most 107, and vLLM adds 37
STACKS_S = 2.0  # to write the stacks of many threads, or of a process that was swapped out
OUT_OF_MEMORY = (
    "killed while this machine's memory ran out; lower learner.tokens_per_micro_batch or "
    "actor.engine.kv_cache_memory_bytes, or end other programs"
)
KILLED_S = 5.0  # timeout of a kill; a process that waits in the kernel takes longer


@dataclass(frozen=True)
class Command:
    """A process's command. `env`: variables added to the environment that the process inherits.
    `worker`, `at_once`: see `KeptProcess`."""

    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    worker: tuple[str, ...] = ()
    at_once: bool = False


@dataclass(kw_only=True)
class Child(KeptProcess):
    """One started command.

    `log_from`: offset of its output in its log file. `killed_for`: why the launcher killed it.
    `oom_kills`: how many kills for lack of memory the kernel had counted when the command started.
    """

    log: Path
    process: subprocess.Popen[bytes]
    log_from: int = 0
    killed_for: str = ""
    oom_kills: int = field(default_factory=oom_kills)
    _damage: str = ""

    @property
    def exit_code(self) -> int | None:
        """The process's exit code, negative if a signal killed the process; None while it runs."""
        return self.process.poll()

    @property
    def ended(self) -> bool:
        return self.exit_code is not None

    @property
    def status(self) -> ProcessStatus | None:
        """The process's last report about itself; None before the first report, or if the report is
        damaged."""
        try:
            return RunFolder(self.log.parents[1]).status_of(self.name)
        except UserError as error:
            if self._damage != str(error):  # it is read several times a second
                self._damage = str(error)
                log.warning("%s; until then, the process counts as not ready", error)
            return None

    @property
    def ready(self) -> bool:
        return self.status is not None

    def last_lines(self, count: int) -> list[str]:
        """Returns the last `count` lines of output that do not match NOISE."""
        return [line for line in self._tail() if not NOISE.match(line)][-count:]

    def reason(self) -> str:
        """Returns why the process was killed, or its last message or error; "" if unknown."""
        if self.killed_for:
            return self.killed_for
        if self.exit_code == -signal.SIGKILL and oom_kills() > self.oom_kills:
            return OUT_OF_MEMORY
        lines = self._tail()
        for line in reversed(lines):
            if own := OWN.match(line):
                return own[1]
        raised = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent")]
        after = lines[raised[-1] + 1 :] if raised else []
        if self.exit_code == -signal.SIGBUS:
            return "SIGBUS: a page of a file could not be stored; check for a full disk or /dev/shm"
        return next((line for line in after if line and not line[0].isspace()), "")

    def _tail(self) -> list[str]:
        if not self.log.exists():
            return []
        with self.log.open("rb") as output:
            output.seek(max(self.log_from, self.log.stat().st_size - TAIL_BYTES))
            return output.read().decode("utf-8", errors="replace").splitlines()

    @property
    def stopped(self) -> bool:
        """Whether SIGSTOP or a debugger has stopped the process."""
        try:
            status = psutil.Process(self.process.pid).status()
        except psutil.NoSuchProcess:
            return False
        return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

    def show_stacks(self) -> None:
        """Makes the workers write their threads' stacks. Wakes stopped workers."""
        for process in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(STACKS)
                process.send_signal(signal.SIGCONT)
        time.sleep(STACKS_S)

    def kill(self) -> None:
        """Kills the process and all that it started, even if the process itself has ended."""
        super().kill()
        try:
            self.process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            log.warning("%s (process %d) was killed but has not ended; it waits in the kernel "
                        "for a disk or a GPU", self.name, self.process.pid)  # fmt: skip


@dataclass
class Children:
    """All processes of a run. `members`: the processes, keyed by name, in start order. `logs`: the
    run's folder logs/. `hang_s`: `learner.hang_s`."""

    logs: Path
    hang_s: float = 0.0
    members: dict[str, Child] = field(default_factory=dict)
    impatient: bool = False
    """Whether `stop` kills at once. A signal handler may set it while `stop` waits."""
    _keeper: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.heartbeat = LastHeartbeat(self.logs.parent, self.hang_s)

    def start(self, name: str, command: Command) -> Child:
        """Starts `command` and appends its output to `<name>.log`. Kills and replaces an earlier
        member with the same name."""
        worker, at_once, log = command.worker, command.at_once, self.logs / f"{name}.log"
        self.clear(name)
        pipe = self.keep()
        with log.open("ab") as output:
            begins = output.tell()
            process = subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(command.env),
                start_new_session=True,
                # Runs in the child: the keeper hears of it even if this process is killed now.
                preexec_fn=lambda: tell_keeper(pipe, name, os.getpid(), worker, at_once),
            )
        child = Child(name, process.pid, worker, at_once, log=log, process=process, log_from=begins)
        self.members[name] = child
        return child

    def clear(self, name: str) -> None:
        """Kills an earlier member `name` and everything it started. Deletes the member's report."""
        if earlier := self.members.get(name):
            earlier.kill()
        RunFolder(self.logs.parent).forget(name)

    def keep(self) -> int:
        """Starts the keeper process unless one is running. Returns the descriptor of its pipe."""
        known = self._keeper
        if known is None or known.poll() is not None:
            with (self.logs / "keeper.log").open("ab") as output:
                self._keeper = subprocess.Popen(
                    [
                        *module_command("launch.backends.run_keeper"),
                        *[str(self.logs.parent), str(self.hang_s)],
                    ],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_environment(),
                    start_new_session=True,
                )
            if known is not None:
                log.warning("the keeper ended with exit code %s; started again", known.returncode)
            for child in self.members.values():
                self.tell(child)
        assert self._keeper is not None and self._keeper.stdin is not None
        return self._keeper.stdin.fileno()

    def tell(self, child: Child) -> None:
        """Tells the keeper about a process. Raises R3LError if the keeper has ended."""
        try:
            tell_keeper(self.keep(), child.name, child.pid, child.worker, child.at_once)
        except BrokenPipeError:
            raise R3LError(f"the run's keeper process ended while {child.name} started") from None

    def dead(self) -> list[Child]:
        return [child for child in self.members.values() if child.ended]

    def stop(self, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
        """Ends all processes, then the keeper. While waiting, calls `meanwhile` repeatedly. Returns
        the names of the processes that were killed."""

        def hurry() -> bool:
            meanwhile()
            return self.impatient

        killed = end_in_order([*self.members.values()], self.heartbeat, hurry)
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.communicate()
            self._keeper = None
        return killed


def _environment(own: dict[str, str] | None = None) -> dict[str, str]:
    """Returns a child's environment variables. Omits an outer job's variables, which would make the
    child wait for that job's ranks. Replaces a TMPDIR that is too long for sockets."""
    outer = {name: value for name, value in os.environ.items() if not OUTER_JOB.fullmatch(name)}
    if len(outer.get("TMPDIR", "").encode()) > LONGEST_TMPDIR:
        outer["TMPDIR"] = "/tmp"
    given = STEADY_MEMORY | outer | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": import_path()}
    return given | (own or {})

"""Ends a run's processes in order, even if the launcher was killed.

    launcher ══ pipe ══► keeper
        └─► buffer, learner, actors ── a line each ──► pipe

Only the launcher keeps the writing end of the pipe. When the launcher ends, for whatever reason,
the kernel closes the pipe. Each process writes a line about itself (`tell_keeper`) before it
executes its command.

    process   is asked to end    is killed
    actors    at once            after 20 s; at once if the launcher is gone
    learner   at once            when 20 s have passed and its heartbeat is overdue (learner.hang_s)
    buffer    after all others   after the same 20 s, or 2 s after it was asked, whichever is later

The learner first finishes its micro-batch and its checkpoint. The launcher ends a run in this order
(`end_in_order`), and then ends the keeper. If the launcher dies first, the keeper
(`python -m launch.backends.run_keeper RUN HANG_S`) ends the run.

Children end with their parents: an actor's engine (r3l.run.process.end_with_parent), environment
workers and their helpers (envs.isolation.reaper). Rank 0 of the learner ends the other ranks.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from r3l.run.process.last_heartbeat import LastHeartbeat
from r3l.run.process.process_list import every_process

SAVES, LAST = "learner", "buffer"
DEADLINE_S = 20.0
LAST_S = 2.0  # for the buffer to close its store, even if the others used up the deadline
LOOKS_S = 0.05


@dataclass
class KeptProcess:
    """A command and its process group. `pid`: None if another launcher started the command.
    `worker`: the arguments that identify the learner's ranks. If there are ranks, only they get
    SIGTERM. `at_once`: whether the command is killed as soon as r3l-launch is gone."""

    name: str
    pid: int | None
    worker: tuple[str, ...] = ()
    at_once: bool = False
    _leader: psutil.Process | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._leader = None if self.pid is None else psutil.Process(self.pid)

    @property
    def ended(self) -> bool:
        """Whether both the command and its workers have ended."""
        return not (self._leader is not None and _runs(self._leader)) and not self.workers()

    def terminate(self) -> None:
        """Asks the workers to end; if there are none, asks the process. Wakes stopped processes."""
        # On SIGTERM, DeepSpeed's launcher would kill its workers at once.
        for process in self.workers() or filter(None, [self._leader]):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the process group and the workers, even if the process itself has already ended."""
        if self.pid is not None and not self._id_is_used_again():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        for process in self.workers():  # those of a Ray runner are in other groups
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _id_is_used_again(self) -> bool:
        """Whether another process now has this id. If so, the whole group has ended."""
        try:
            return self._leader is not None and psutil.Process(self._leader.pid) != self._leader
        except psutil.NoSuchProcess:
            return False

    def workers(self) -> list[psutil.Process]:
        """Finds the processes that run in our working folder with the arguments `worker`."""
        found, here = [], os.getcwd()
        for process in every_process() if self.worker else ():
            with contextlib.suppress(psutil.Error, OSError):
                if _contains(process.cmdline(), self.worker) and process.cwd() == here:
                    found.append(process)
        return [process for process in found if _runs(process)]


def end_in_order(
    members: Sequence[KeptProcess],
    heartbeat: LastHeartbeat | None = None,
    hurry: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Ends the processes in the order of the module's table. Once `hurry` returns True, kills all
    that still run. Returns the names of the killed processes."""
    end, killed = time.monotonic() + DEADLINE_S, list[str]()
    for last in (False, True):
        part = [member for member in reversed(members) if (member.name == LAST) == last]
        for member in part:
            member.terminate()
        limit = max(end, time.monotonic() + LAST_S) if last else end
        while running := [m for m in part if m.name not in killed and not m.ended]:
            at_once, late = hurry(), time.monotonic() > limit
            for member in running:
                saves = member.name == SAVES and heartbeat is not None and not heartbeat.overdue()
                if at_once or (late and not saves):
                    killed.append(member.name)
                    member.kill()
            time.sleep(LOOKS_S)
        for member in part:
            member.kill()
    return killed


def tell_keeper(
    pipe: int, name: str, pid: int | None, worker: tuple[str, ...], at_once: bool
) -> None:
    """Writes the line of a process into the keeper's pipe."""
    line = {"name": name, "pid": pid, "worker": worker, "at_once": at_once}
    os.write(pipe, json.dumps(line).encode() + b"\n")


def main() -> None:
    """Reads the processes of a run from the pipe. Ends them when the pipe is closed."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # they are for the launcher
    kept: dict[str, KeptProcess] = {}
    for line in sys.stdin:
        values = json.loads(line)
        kept[values["name"]] = KeptProcess(**values | {"worker": tuple(values["worker"])})
    members = list(kept.values())
    names = ", ".join(member.name for member in members if not member.ended)
    print(f"r3l-keeper: the launcher is gone; ending {names or 'nothing'}", flush=True)
    for member in members:
        if member.at_once:
            member.kill()
    heartbeat = LastHeartbeat(Path(sys.argv[1]), float(sys.argv[2]))
    for name in end_in_order(members, heartbeat):
        print(f"r3l-keeper: {name} has not ended in time; it was killed", flush=True)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _contains(arguments: list[str], part: tuple[str, ...]) -> bool:
    starts = range(len(arguments) - len(part) + 1)
    return any(tuple(arguments[at : at + len(part)]) == part for at in starts)


if __name__ == "__main__":
    main()

"""Starts and ends the processes of an attempt. Each runs a program or calls a function.

    worker ─► starter ─► wrapper ─► the function or program ─► what that starts, in any session
      │          ▲          ▲                                       │
      │          └──────────┴───── processes whose parents ended ◄──┘
      └── ends wrappers and strays: what a killed wrapper left to the starter

If an agent has killed the starter too, the strays belong to the worker's reaper (`heir`).
"""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from envs.agents.agent_runner import ProcessState
from envs.agents.agent_variables import CACHES, DOWNLOADS
from envs.agents.call_function import CLEAR_S, Job, children_of
from envs.agents.opened_folder import OpenedFolder
from envs.agents.task_folders.private_view import View
from r3l.errors import EnvironmentFailed

log = logging.getLogger(__name__)

LAST = 64 << 10  # bytes at the end of an output that are searched for the last line
Argv = tuple[str, ...]

MARK = "R3L_ENV_REAPER"
"""Environment variable that identifies the worker's reaper. All processes below it inherit it."""
_starters: dict[Argv, subprocess.Popen[str]] = {}
"""Processes that start other processes (envs.agents.call_function), keyed by their command."""


heir = 0
"""The process that adopts what a killed starter leaves; 0: unknown. It must have no children but
this process and what it adopted."""
_known: set[int] = set()
"""Children of the starters and of `heir` that are to live: wrappers, heads, and what the starters
started themselves."""
_OURS = [str(Path(__file__).with_name(name)) for name in ("call_function.py", "remote_agent.py")]
_FRAME = re.compile(r'\s*File "(.+)", line (\d+)')
_LIBRARY = re.compile(r"<|.*/(?:site-packages|dist-packages|lib(?:64)?/python3\.\d+)/")
_GROUP = re.compile(r"^ *(?:\+-[-+ .\d]*|\| ?)")
"""What a traceback of an exception group has before its lines, or all of such a line."""


class AgentProcess:
    """Runs a process in `folder`/work. Files in `folder` hold stdin, stdout and stderr. With
    `pipes`, stdin and stdout are FIFOs. The process then waits until others have opened both FIFOs.
    `argv`: the program's command, () for a function. `given`: what it reads from stdin. `lasting`:
    the processes that it starts may live on after its end, until `kill`. `fenced`: it may neither
    signal nor inspect processes that it did not start. `returns`: it fails unless its function
    returns, whatever it printed. `view`: what it sees of the files; None: all."""

    def __init__(
        self,
        starter: Argv,
        argv: Argv,
        folder: OpenedFolder,
        variables: dict[str, str],
        given: str = "",
        *,
        pipes: bool = False,
        lasting: bool = False,
        fenced: bool = False,
        returns: bool = False,
        view: View | None = None,
    ) -> None:
        self.folder, self.lasting = folder, lasting
        for name in ("stdin", "stdout") if pipes else ():
            folder.pipe(name)
        if not pipes:
            os.close(folder.file("stdin", given))
        names = ("exit", "stderr", *(() if pipes else ("stdout",)))
        self.files = {name: folder.file(name) for name in names}
        """Descriptors of the process's files, whatever has their names later."""
        job = Job(
            folder=str(folder.path),
            variables=variables,
            argv=list(argv),
            lasting=lasting,
            fenced=fenced,
            returns=returns,
            view=view,
        )
        try:
            self.server, self.pid, self.head = _start(starter, job)
        except EnvironmentFailed:
            self._close()
            raise
        _known.update((self.pid, self.head))

    def state(self) -> ProcessState:
        names = ("stdout", "stderr") if "stdout" in self.files else ()
        lines = {name: self.last_line(name) for name in names}
        return ProcessState(exit=self.poll(), pid=self.pid, folder=str(self.folder.path), **lines)

    def poll(self) -> int | None:
        """Returns the exit code, or None while the process runs."""
        alive = True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            alive = False
        code = os.pread(self.files["exit"], 16, 0)  # a process ends a moment after it writes this
        if not code:
            return None if alive else -signal.SIGKILL
        return int(code) if code.lstrip(b"-").isdigit() else 1  # an agent may write there too

    def last_line(self, name: str) -> str:
        """Returns the last non-empty line of `stdout`, or the error at the end of `stderr`."""
        if name not in self.files:
            return ""
        file = self.files[name]
        written = os.pread(file, LAST, max(0, os.fstat(file).st_size - LAST))
        text = written.decode(errors="replace")
        return last_error(text) if name == "stderr" else text.strip().rpartition("\n")[2].strip()

    def leave(self) -> bool:
        """Closes the files of a lasting process. Returns whether the processes that it started stay
        alive until `kill`. If the process has not ended by itself, ends them all."""
        if self.poll() is None:
            self.kill()
            return False
        self._close()
        return _runs(self.head)

    def kill(self) -> None:
        """Ends the process and everything that it started, in whatever session. Closes its
        files."""
        _known.difference_update((self.pid, self.head))
        lost = self.server.poll() is not None  # they may have gone to any process
        _end(self.pid, self.head) if lost else _end()
        self._close()

    def _close(self) -> None:
        for file in self.files.values():
            os.close(file)
        self.files.clear()


def last_error(text: str) -> str:
    """Returns the last line of a text; after a traceback, the first and the last line of the error,
    and the newest line of the user's code. Returns "" for an empty text.

        File "/home/me/grade.py", line 7, in grade       the newest line of the user's own code
        File "/usr/lib/python3.12/json/decoder.py", …    a library's
      ValueError: what went wrong                        the error, which may have several lines
    """
    lines = [_GROUP.sub("", line).rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return ""
    places = [(i, found) for i, line in enumerate(lines) if (found := _FRAME.match(line))]
    last = lines[-1].strip()
    if not places:
        return last
    raised = [line for line in lines[places[-1][0] + 1 :] if not line.startswith(" ")]
    error = " … ".join(dict.fromkeys([*raised[:1], last]))
    own = [found for _, found in places if not _of_library(found[1])]
    return error + (f" ({own[-1][1]}:{own[-1][2]})" if own else "")


def _of_library(file: str) -> bool:
    """Whether a file of a traceback is r3l's starter or a library's."""
    return file in _OURS or _LIBRARY.match(file) is not None


def _start(starter: Argv, job: Job) -> tuple[subprocess.Popen[str], int, int]:
    """Has a starter run a job; starts the starter if needed. Returns the starter, and the ids of
    the wrapper and of its head. Raises EnvironmentFailed."""
    server = _starters.get(starter)
    begun = server is not None and server.poll() is None
    try:
        if server is None or not begun:
            pipe = subprocess.PIPE
            # A function's file is imported once, for all attempts, so with the user's own caches.
            asked = job["variables"]
            own = {n: v for n, v in os.environ.items() if n in CACHES or asked.get(n) == v}
            # Libraries look for programs when they are imported.
            own |= {name: asked[name] for name in (*DOWNLOADS, "PATH") if name in asked}
            mark = os.environ.get(MARK, "")  # shown in the command line of all its forks
            argv = (*starter, *([""] * (len(starter) < 3)), mark)
            server = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=own, text=True)
            _starters[starter] = server
            assert server.stdout is not None
            server.stdout.readline()  # it is ready
            _known.update(children_of(server.pid))
        assert server.stdin is not None and server.stdout is not None  # both are pipes
        print(json.dumps(job), file=server.stdin, flush=True)
        wrapper, head = map(int, server.stdout.readline().split())
    except (OSError, ValueError):
        if server is not None:
            server.kill()
        _starters.pop(starter, None)
        if begun:  # an agent may have killed it since its last job
            return _start(starter, job)
        raise EnvironmentFailed(
            f"{starter[-1]} started no process: the starter exited, or did not print a "
            f"process id; import {starter[-1]} with {starter[0]} to see why",
            cause="agent_not_started",
        ) from None
    return server, wrapper, head


def _strays(also: Iterable[int]) -> list[int]:
    """Returns what ended attempts have left, with everything below it. `also`: further processes
    that are to end."""
    parents = [server.pid for server in _starters.values()] + [heir] * bool(heir)
    found = [pid for parent in parents for pid in children_of(parent)]
    known = {*_known, os.getpid(), *(server.pid for server in _starters.values())}
    found = [pid for pid in {*found, *filter(_runs, also)} if pid not in known]
    for pid in found:
        found += children_of(pid)
    return found


def _end(*also: int) -> None:
    """Kills all strays and the processes `also`. Waits until they have ended."""
    end, empty, ending = time.monotonic() + CLEAR_S, 0, set(also)
    while empty < 2:  # one list may overlook a process while others end
        found = _strays(ending)
        ending.update(found)
        empty = 0 if found else empty + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if found and time.monotonic() > end:
            log.warning("processes of an ended attempt cannot be killed: %s", found[:10])
            _known.update(found)
            return
        if found:
            time.sleep(0.001)


def _runs(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False

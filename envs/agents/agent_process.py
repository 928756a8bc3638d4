"""Starts and ends the processes of an attempt. Each runs a program or calls a function."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from envs.agents.agent_runner import ProcessState
from r3l.errors import EnvironmentFailed

LAST = 64 << 10  # bytes at the end of an output that are searched for the last line
Argv = tuple[str, ...]

UNSET = (
    "PYTHONPATH PYTHONHASHSEED HF_HUB_OFFLINE OPENAI_API_KEY OPENAI_BASE_URL ANTHROPIC_API_KEY "
    "ANTHROPIC_BASE_URL"
).split()
"""Variables that no agent gets. They set up the worker's Python, or lead past the gateway."""

_starters: dict[Argv, subprocess.Popen[str]] = {}
"""Processes that start other processes (envs.agents.call_function), keyed by their command."""


def child_environment(more: dict[str, str], secret: Sequence[str] = ()) -> dict[str, str]:
    """Copies the user's variables, except those listed in UNSET or `secret`. Then adds `more`."""
    unset = {*UNSET, *secret}
    return {name: value for name, value in os.environ.items() if name not in unset} | more


class AgentProcess:
    """Runs a process in `folder`/work. Files in `folder` hold stdin, stdout and stderr. With
    `pipes`, stdin and stdout are FIFOs. The process then waits until others have opened both FIFOs.
    `argv`: the program's command, () for a function."""

    def __init__(
        self,
        starter: Argv,
        argv: Argv,
        folder: Path,
        variables: dict[str, str],
        pipes: bool = False,
    ) -> None:
        self.folder, self.pipes = folder, pipes
        for name in ("exit", "stdout", "stderr", *(["stdin"] * pipes)):
            (folder / name).unlink(missing_ok=True)
        for name in ("stdin", "stdout") if pipes else ():
            os.mkfifo(folder / name)
        server = _starters.get(starter)
        if server is None or server.poll() is not None:
            pipe = subprocess.PIPE
            own = child_environment({})  # a function's file is imported once, for all attempts
            own = {name: value for name, value in own.items() if name in variables}
            server = subprocess.Popen(starter, stdin=pipe, stdout=pipe, env=own, text=True)
            _starters[starter] = server
        assert server.stdin is not None and server.stdout is not None  # both are pipes
        try:
            print(json.dumps([str(folder), variables, argv]), file=server.stdin, flush=True)
            self.pid = int(server.stdout.readline())
        except (OSError, ValueError):
            server.kill()
            del _starters[starter]
            raise EnvironmentFailed(
                f"{starter[-1]} started no process: the starter exited, or did not print a "
                f"process id; import {starter[-1]} with {starter[0]} to see why",
                cause="agent_not_started",
            ) from None

    def state(self) -> ProcessState:
        lines = {} if self.pipes else {s: self.last_line(s) for s in ("stdout", "stderr")}
        return ProcessState(exit=self.poll(), pid=self.pid, folder=str(self.folder), **lines)

    def poll(self) -> int | None:
        """Returns the exit code, or None while the process runs."""
        alive = True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            alive = False
        file = self.folder / "exit"  # a process ends a moment after it writes this file
        return int(file.read_text()) if file.exists() else None if alive else -signal.SIGKILL

    def last_line(self, name: str) -> str:
        """Returns the last non-empty line of `stdout` or `stderr`."""
        path = self.folder / name
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST))
            written = file.read().decode(errors="replace").strip()
        return written.rpartition("\n")[2].strip()

    def kill(self) -> None:
        """Kills the process's whole group, since children may still run after the process ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

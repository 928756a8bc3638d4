"""The process of an agent or a grader: a program, or a function called in a forked process."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
from pathlib import Path

OUTPUT_LIMIT = 1 << 30  # bytes of any file that it writes
LAST = 64 << 10  # bytes of its output in which the last line is looked for
Argv = tuple[str, ...]

_servers: dict[Argv, subprocess.Popen[str]] = {}
"""Processes that call a function (envs.agents.call_function), by their command."""


class AgentProcess:
    """A running process. `folder` has its `stdin`, `stdout` and `stderr`, and `work`, where it
    runs. `forks`: the command is a server that forks a process for each call."""

    def __init__(self, argv: Argv, folder: Path, variables: dict[str, str], *, forks: bool) -> None:
        self.folder, self.code = folder, None
        self.popen: subprocess.Popen[bytes] | None = None
        for name in ("exit", "stdout", "stderr"):
            (folder / name).unlink(missing_ok=True)
        if forks:
            self.pid = _forked(argv, folder, variables)
        else:
            self.popen = _started(argv, folder, variables)
            self.pid = self.popen.pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (OUTPUT_LIMIT, OUTPUT_LIMIT))

    def poll(self) -> int | None:
        """Returns the exit code, or None while the process runs."""
        if self.popen is not None:
            return self.popen.poll()
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            file = self.folder / "exit"
            return int(file.read_text()) if file.exists() else -signal.SIGKILL
        return None

    def last_line(self, name: str) -> str:
        """Returns the last line that is not empty in `stdout` or `stderr`."""
        path = self.folder / name
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def kill(self) -> None:
        """Kill the process and its group; it may have ended while its children run."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.popen is not None:
            self.popen.wait()


def _started(argv: Argv, folder: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    with (
        (folder / "stdin").open("rb") as given,
        (folder / "stdout").open("wb") as out,
        (folder / "stderr").open("wb") as err,
    ):
        return subprocess.Popen(
            argv,
            stdin=given,
            stdout=out,
            stderr=err,
            cwd=folder / "work",
            env=variables,
            start_new_session=True,
        )


def _forked(argv: Argv, folder: Path, variables: dict[str, str]) -> int:
    """Returns the id of a new process that calls the function."""
    server = _servers.get(argv)
    if server is None or server.poll() is not None:
        pipe = subprocess.PIPE
        server = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=variables, text=True)
        _servers[argv] = server
    assert server.stdin is not None and server.stdout is not None  # both are pipes
    print(json.dumps([str(folder), variables]), file=server.stdin, flush=True)
    return int(server.stdout.readline())

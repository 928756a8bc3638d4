"""Processes that begin as forks of one that has imported a command's modules.

A learner spends most of its CPU time on imports, and a buffer in a test nearly all of it. Tests
that start the same command many times share the imports: `Forked` is like `subprocess.Popen` of
`python -m MODULE ARGUMENTS`, a process of its own to kill, stop and wait for. Only its command line
in the system's list is that of this module. What a command imports, and in which order, is tested
where it starts anew: in the whole runs of `tests/system`, and with `Served(change=…)`.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_STARTERS: dict[tuple[str, ...], "_Starter"] = {}


class _Starter:
    """The process that has imported modules and forks. It ends when this process closes its end of
    the socket, or has ended."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), *modules]
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for what the tests are about
            )
        self.answers = self.socket.makefile("r", encoding="utf-8")
        self.lock = threading.Lock()

    def ask(self, request: dict[str, Any], *files: int) -> int:
        message = json.dumps(request).encode() + b"\n"
        with self.lock:
            sent = socket.send_fds(self.socket, [message], files)
            self.socket.sendall(message[sent:])
            answer = self.answers.readline()
        assert answer, "the process that forks has ended"
        return int(answer)

    def close(self) -> None:
        self.answers.close()
        self.socket.close()
        self.process.wait()


def _starter(modules: tuple[str, ...]) -> _Starter:
    """One for all tests of this process."""
    if modules not in _STARTERS:
        _STARTERS[modules] = _Starter(modules)
        atexit.register(_STARTERS[modules].close)
    return _STARTERS[modules]


class Forked:
    """`python -m module arguments` in the environment and the folder of this process, as a fork.

    `imported`: what the fork has imported already. `stdout` and `stderr`: file descriptors.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        imported: tuple[str, ...],
        stdout: int,
        stderr: int,
        env: dict[str, str] | None = None,
        start_new_session: bool = False,
    ) -> None:
        self._starter = _starter(imported)
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(os.environ) | (env or {}),
            "folder": os.getcwd(),
            "session": start_new_session,
        }
        self.pid = self._starter.ask(request, stdout, stderr)
        self.returncode: int | None = None
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        if self.returncode is None and self._ends(0.0):
            self._reap()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._ends(timeout):
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
            self._reap()
        assert self.returncode is not None
        return self.returncode

    def _ends(self, timeout: float | None) -> bool:
        """Whether it ends within `timeout` seconds. Some tests have too many files for `select`."""
        waiting = select.poll()
        waiting.register(self._ended, select.POLLIN)
        return bool(waiting.poll(None if timeout is None else 1000 * timeout))

    def _reap(self) -> None:
        self.returncode = self._starter.ask({"ended": self.pid})
        os.close(self._ended)

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _next_fork(requests: socket.socket) -> dict[str, Any]:
    """Answers requests. Returns in every fork, with what it was asked for."""
    while True:
        message, files, *_ = socket.recv_fds(requests, 1 << 16, 2)
        while message and not message.endswith(b"\n"):
            message += requests.recv(1 << 16)
        if not message:
            os._exit(0)
        request: dict[str, Any] = json.loads(message)
        if "ended" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
        elif answer := os.fork():
            for file in files:
                os.close(file)
        else:
            requests.close()
            for own, file in zip((1, 2), files, strict=True):
                os.dup2(file, own)
                os.close(file)
            return request
        requests.sendall(b"%d\n" % answer)


def _become(request: dict[str, Any]) -> None:
    """Makes this process what `python -m` would have made it, and runs the module."""
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv[1:] = request["arguments"]
    sys.modules.pop(request["module"], None)  # it runs as __main__
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        gc.disable()
        for name in sys.argv[2:]:
            with contextlib.suppress(SystemExit):
                importlib.import_module(name)
        gc.freeze()
        gc.enable()
        request = _next_fork(requests)
    _become(request)

"""Runs math-verify in a worker process to compare answers with references.

    check(gold, answer) ─► the worker (started when first needed) ─► verdict
                              └─ if it ends, the next check starts another

A hostile answer, such as a tower of powers, can block the interpreter or fill its memory. So
math-verify runs in a worker process under limits that the kernel enforces. (math-verify's
own limit is an alarm, which works only in a main thread.) A comparison has a limit of processor
time, so that a right answer does not time out on a busy machine.

The worker evaluates the policy's text, so it must not be trusted. The process pools of
multiprocessing and pebble are not safe here, because they unpickle what a worker sends.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal, Self

from r3l.errors import EnvironmentFailed

Verdict = Literal["correct", "wrong", "unreadable", "timeout", "crash"]

ROOT = Path(__file__).parents[2]
WORKER = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from envs.questions.verifier_worker import main; main()"
)
"""The worker's program. It imports this `envs`, not a user's folder of the same name."""
START_S = 120.0
"""Seconds that a start may take. A worker first imports sympy."""
SILENT_S = 45.0
"""Seconds of real time that an answer may take before the worker is killed."""


class Verifier:
    """A worker process and its limits. Calls from several threads take turns. `cpu_s`: limit of one
    comparison, in seconds of processor time."""

    def __init__(self, cpu_s: float = 3.0) -> None:
        self.cpu_s = cpu_s
        self.process: subprocess.Popen[bytes] | None = None
        self._sound: set[str] = set()
        self._users = 0
        self._lock = threading.Lock()

    def check(self, gold: str, answer: str) -> Verdict:
        """Compares an answer with the reference `gold`. Returns `unreadable` if the answer is
        not mathematics. Raises EnvironmentFailed if the reference cannot be read, or if the worker
        does not start."""
        with self._lock:
            verdict = self._ask(gold, answer)
            if verdict == "crash":  # another process may have killed it
                verdict = self._ask(gold, answer)
            if verdict in ("timeout", "crash"):
                # The policy's fault, unless the reference alone does the same.
                sound = gold in self._sound or self._ask(gold, gold) == "correct"
                verdict = verdict if sound else "bad_gold"
        if verdict == "bad_gold":
            raise EnvironmentFailed(
                f"the reference answer {gold[:200]!r} cannot be parsed as mathematics",
                cause="unreadable_reference",
            )
        self._sound.add(gold)
        return verdict  # type: ignore[return-value]

    def acquire(self) -> Self:
        """Adds a user of the verifier. The worker ends when the last user calls `release`."""
        self._users += 1
        return self

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self.close()

    def close(self) -> None:
        """Ends the worker. A later check starts another."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, gold: str, answer: str) -> str:
        """Returns the worker's verdict. If the worker ends first, returns timeout or crash."""
        process = self.process or self._start()
        request = json.dumps({"gold": gold, "answer": answer, "cpu_s": self.cpu_s})
        began = time.monotonic()
        try:
            return _exchange(process, request.encode() + b"\n", SILENT_S)
        except (EOFError, BrokenPipeError):
            self.close()
            silent = time.monotonic() - began >= SILENT_S
            return "timeout" if silent or process.returncode == -signal.SIGPROF else "crash"

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: modules in the current folder must not shadow the standard library's
        command = [sys.executable, "-P", "-c", WORKER]
        self.process = process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            _exchange(process, b"", START_S)
        except EOFError:
            self.close()
            raise EnvironmentFailed(
                f"the answer verifier does not start (exit code {process.returncode}); check that "
                "math-verify is installed",
                cause="verifier_start",
            ) from None
        return process


def _exchange(process: subprocess.Popen[bytes], request: bytes, limit_s: float) -> str:
    """Sends a request and returns the verdict. Kills the process if no answer comes within
    `limit_s`. Raises EOFError or BrokenPipeError if the process ends."""
    assert process.stdin is not None and process.stdout is not None  # both are pipes
    deadline = threading.Timer(limit_s, process.kill)
    deadline.daemon = True
    deadline.start()
    try:
        process.stdin.write(request)
        process.stdin.flush()
        line = process.stdout.readline()
    finally:
        deadline.cancel()
    if not line.endswith(b"\n"):
        raise EOFError
    return str(json.loads(line)["verdict"])


SHARED = Verifier()
"""The verifier that all environments of a process share."""

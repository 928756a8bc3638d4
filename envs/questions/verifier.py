"""Compares answers with references by math-verify, in worker processes.

    check(gold, answer) ─► a free worker (started when first needed) ─► verdict
                              └─ ended over it: the next check starts another

math-verify limits its time by an alarm, which works only in a main thread. A hostile answer (towers
of powers, thousands of brackets) can block the interpreter or fill its memory. So it runs in
processes, under limits that the kernel enforces. The limit is in processor time, so that a busy
machine does not turn right answers into wrong ones.

A library's pool cannot replace it: the pools of multiprocessing and pebble unpickle what a worker
sends, and workers evaluate the policy's text. Pebble's workers also share one lock, so a worker
killed while it holds the lock stops all others, and killing an idle worker ends the pool.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Literal

from r3l.errors import EnvironmentFailed

Verdict = Literal["correct", "wrong", "unreadable", "timeout", "crash"]

ROOT = Path(__file__).parents[2]
WORKER = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from envs.questions.verifier_worker import main; main()"
)
"""The worker's program; it finds this package before a user's folder of the same name."""
START_S = 120.0
"""Start limit: a worker imports sympy before it answers."""
SILENT_S = 45.0
"""A worker that neither answers nor uses up its processor time is killed."""
LINGER_S = 3.0


class Verifier:
    """A pool of `workers` processes, safe to call from many threads. `cpu_s`: processor-time limit
    of one comparison, in seconds. `counts`: number of each verdict so far."""

    def __init__(self, workers: int = 2, cpu_s: float = 3.0) -> None:
        self.cpu_s = cpu_s
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._sound: set[str] = set()
        self._workers = [_Worker() for _ in range(workers)]
        # Last in, first out: if one worker is enough, the others are never started.
        self._free: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._free.put(worker)

    def check(self, gold: str, answer: str) -> Verdict:
        """Returns the verdict on `answer` against `gold`: `unreadable` if it contains no
        mathematics, `timeout` if the comparison takes longer than `cpu_s`, `crash` if it ends
        workers.

        Waits for a free worker, which has a deadline. Raises EnvironmentFailed if the reference
        answer cannot be read or workers cannot be started.
        """
        worker = self._free.get()
        try:
            verdict = worker.ask(gold, answer, self.cpu_s)
            if verdict == "crash":  # another process may have killed it
                self._count(verdict)
                verdict = worker.ask(gold, answer, self.cpu_s)
            if verdict in ("timeout", "crash"):
                # The policy's fault, unless the reference alone does the same.
                sound = gold in self._sound or worker.ask(gold, gold, self.cpu_s) == "correct"
                verdict = verdict if sound else "bad_gold"
        finally:
            self._free.put(worker)
        if verdict == "bad_gold":
            raise EnvironmentFailed(
                f"the reference answer {gold[:200]!r} cannot be parsed as mathematics",
                cause="unreadable_reference",
            )
        self._sound.add(gold)
        self._count(verdict)
        return verdict  # type: ignore[return-value]

    def close(self) -> None:
        """End the workers; a later check starts new ones."""
        for worker in self._workers:
            worker.kill()

    def _count(self, verdict: str) -> None:
        with self._lock:
            self.counts[verdict] += 1


class _Worker:
    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, gold: str, answer: str, cpu_s: float) -> str:
        """Returns the worker's verdict, timeout or crash."""
        process = self.process or self._start()
        request = json.dumps({"gold": gold, "answer": answer, "cpu_s": cpu_s})
        began = time.monotonic()
        try:
            return _exchange(process, request.encode() + b"\n", SILENT_S)
        except (EOFError, BrokenPipeError):
            self.kill()
            silent = time.monotonic() - began >= SILENT_S
            return "timeout" if silent or process.returncode == -signal.SIGPROF else "crash"

    def kill(self) -> None:
        """Kill the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: modules in the current folder must not shadow the standard library's
        command = [sys.executable, "-P", "-c", WORKER]
        self.process = process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            _exchange(process, b"", START_S)
        except EOFError:
            self.kill()
            raise EnvironmentFailed(
                f"the answer verifier does not start (exit code {process.returncode}); check that "
                "math-verify is installed",
                cause="verifier_start",
            ) from None
        return process


def _exchange(process: subprocess.Popen[bytes], request: bytes, limit_s: float) -> str:
    """Send a request and return the verdict. Kills the process if it takes longer than `limit_s`.

    Raises EOFError or BrokenPipeError if the process ends.
    """
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


class SharedVerifier:
    """The pool of all environments of a process. Call `acquire` before and `release` after use; the
    workers end LINGER_S after the last release."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = self._users = 0
        self._pool: Verifier | None = None

    def acquire(self) -> Verifier:
        """Returns the pool, after adding a user."""
        with self._lock:
            if self._pool is None or self._pid != os.getpid():  # a fork must not share its pipes
                self._pool = Verifier(workers=max(1, min(4, (os.cpu_count() or 2) // 2)))
                self._pid, self._users = os.getpid(), 0
                atexit.register(self._pool.close)
            self._users += 1
            return self._pool

    def release(self) -> None:
        """Remove one user."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                timer = threading.Timer(LINGER_S, self._close_unused)
                timer.daemon = True
                timer.start()

    def _close_unused(self) -> None:
        with self._lock:
            if self._users == 0 and self._pool is not None:
                self._pool.close()


SHARED = SharedVerifier()

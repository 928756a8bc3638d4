"""Comparison of an answer with the reference by math-verify, in worker processes.

    check(gold, answer) ─► a free worker (started when first needed) ─► verdict
                              └─ ended over it: the next check starts another

math-verify limits its time by an alarm, which works in a main thread only, and a hostile answer
(towers of powers, thousands of brackets) can block the interpreter or fill its memory. So it runs
in processes, under limits that the kernel enforces. The limit is in processor time, so that a busy
machine does not turn right answers into wrong ones.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
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

WORKER = Path(__file__).with_name("verifier_worker.py")
START_S = 120.0
"""Start limit: a worker imports sympy before it answers."""
SILENT_S = 45.0
"""A worker that neither answers nor uses up its processor time is killed."""
LINGER_S = 3.0


class Verifier:
    """A pool of `workers` processes; safe to call from many threads. `cpu_s`: limit of one
    comparison, seconds of processor time. `counts`: verdicts so far."""

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
        """The verdict on `answer` against `gold`: `unreadable` if it contains no mathematics,
        `timeout` if the comparison takes longer than `cpu_s`, `crash` if it ends workers.

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
                f"the reference answer {gold[:200]!r} cannot be read as mathematics",
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
        """The worker's verdict, timeout or crash."""
        process = self.process or self._start()
        try:
            _write(process, {"gold": gold, "answer": answer, "cpu_s": cpu_s})
            return _read(process, SILENT_S)
        except (_TimedOut, _WorkerEnded, BrokenPipeError) as error:
            self.kill()
            out_of_time = isinstance(error, _TimedOut) or process.returncode == -signal.SIGPROF
            return "timeout" if out_of_time else "crash"

    def kill(self) -> None:
        """Kill the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: modules in the worker's folder must not shadow the standard library's
        command = [sys.executable, "-P", str(WORKER)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        try:
            _read(self.process, START_S)
        except (_TimedOut, _WorkerEnded) as error:
            self.kill()
            raise EnvironmentFailed(
                f"the answer verifier does not start: {error}; check that math-verify is installed",
                cause="verifier_start",
            ) from None
        return self.process


class _TimedOut(Exception):
    pass


class _WorkerEnded(Exception):
    pass


def _write(process: subprocess.Popen[bytes], request: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")


def _read(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """The verdict in the next line. Raises _TimedOut, _WorkerEnded."""
    assert process.stdout is not None
    ready = select.poll()
    ready.register(process.stdout, select.POLLIN)
    end, line = time.monotonic() + timeout_s, b""
    while not line.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or not ready.poll(left * 1000):
            raise _TimedOut(f"no answer for {timeout_s:g} s")
        if not (part := os.read(process.stdout.fileno(), 65536)):
            raise _WorkerEnded(f"it ended with exit code {process.wait()}")
        line += part
    return str(json.loads(line)["verdict"])


class SharedVerifier:
    """The pool of all environments of a process. Call `acquire` before and `release` after use; the
    workers end LINGER_S after the last release."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = self._users = 0
        self._pool: Verifier | None = None

    def acquire(self) -> Verifier:
        """The pool, with one more user."""
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

"""A worker carries out jobs in another thread. Its caller waits only for a limited time.

    caller ──── job ────► worker
    caller ◄── request ── worker     a job may ask its caller to call a function, for example to
    caller ── answer ───► worker     read from a transaction, which only the caller may use
    caller ◄── outcome ── worker

A caller that has waited for too long gives the worker up, and makes another one for its next job.
Only a worker that was given up is interrupted: it gets SystemExit at its next line of Python. So
this exception never reaches the caller, even if a job ends just as the wait for it ends.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Ask = Callable[[Callable[[], Any]], Any]
"""Lets the caller of a job call a function. Returns what the function returned."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of a job: the value that it returned, or the error that it raised."""

    value: T | None = None
    error: BaseException | None = None


class TimedWorker:
    """A worker for one caller. Its thread ends after `give_up`, at the latest with the process."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[Ask], Any] | None] = SimpleQueue()
        self._said: SimpleQueue[Outcome[Any] | Callable[[], Any]] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any] | None] = SimpleQueue()
        self._job: Callable[[Ask], Any] | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Callable[[Ask], T], limit_s: float) -> Outcome[T]:
        """Carries out a job and returns its outcome. Raises TimeoutError if the job takes longer
        than `limit_s` seconds. Lets through any error of a function that the job asks the caller to
        call. After either error, give the worker up."""
        until = time.monotonic() + limit_s
        self._jobs.put(job)
        while True:
            try:
                said = self._said.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                raise TimeoutError(f"took longer than {limit_s:g} s") from None
            if isinstance(said, Outcome):
                return said
            self._answers.put((said(),))

    def give_up(self) -> None:
        """Interrupts the worker, whose thread then ends. If the thread waits outside Python, such
        as for a network, it ends when that wait ends."""
        ident = ctypes.c_ulong(self._thread.ident or 0)  # of no other thread: it waits for jobs
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
        self._answers.put(None)
        self._jobs.put(None)

    def _work(self) -> None:
        with suppress(SystemExit):  # given up between two jobs
            self._carry_out()

    def _carry_out(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._job = job
            try:
                outcome = Outcome(job(partial(self._ask, job)))
            except BaseException as error:  # also SystemExit: a job cannot end the process
                outcome = Outcome[Any](error=error)
            self._job = None
            self._said.put(outcome)

    def _ask(self, job: Callable[[Ask], Any], function: Callable[[], Any]) -> Any:
        if job is not self._job:
            raise RuntimeError("what a call was given to read can be read only during the call")
        self._said.put(function)
        answer = self._answers.get()
        if answer is None:
            raise SystemExit
        return answer[0]

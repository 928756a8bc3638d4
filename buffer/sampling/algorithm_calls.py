"""Calls the methods through which the run's algorithm decides in the service.

A method may be a user's own. If it raises, returns an invalid value, or takes longer than LIMIT_S,
the call fails: the service counts the failure and uses a default.

    method    default
    plan      the plan of the base class: algorithm.group_size slots
    admits    the group is trained on
    recalls   no stored attempt joins

A user's method runs in another thread, so that the writer never waits for longer than LIMIT_S.
Methods of r3l's own classes are called directly. After a call that took too long, the method rests
for REST times LIMIT_S: its calls fail at once, so that the service has time for other requests.
"""

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import lmdb

from buffer.sampling.timed_worker import Ask, Outcome, TimedWorker
from r3l.algorithms.algorithm import Algorithm
from r3l.errors import R3LError
from r3l.notices import notice_again

T = TypeVar("T")
Method = Literal["plan", "admits", "recalls"]
LIMIT_S = 2.0
REST = 15

INSTEAD: dict[Method, str] = {
    "plan": "its groups get algorithm.group_size slots",
    "admits": "its groups are trained on",
    "recalls": "no stored attempt joins its groups",
}


class AlgorithmCalls:
    """Calls the methods of one algorithm. Only one thread may use it."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self._is_own = type(algorithm).__module__.startswith("r3l.")
        self._worker: TimedWorker | None = None
        self._rests_until: dict[Method, float] = {}

    def overrides(self, method: Method) -> bool:
        """Whether the algorithm's class has its own version of the method."""
        return getattr(type(self.algorithm), method) is not getattr(Algorithm, method)

    def call(
        self, method: Method, decide: Callable[[Ask], Any], check: Callable[[Any], T]
    ) -> T | None:
        """Returns `check(decide(ask))`, or None if either failed; tells the user why. `decide`
        calls the method. It must not touch the store, but may `ask` for a function that does.
        `check` raises ValueError for a wrong decision. Errors of the store are raised."""
        if time.monotonic() < self._rests_until.get(method, 0.0):
            return None
        outcome = self._directly(decide) if self._is_own else self._run_in_time(method, decide)
        failure = outcome.error
        if failure is None:
            try:
                return check(outcome.value)
            except (R3LError, lmdb.Error):
                raise
            except Exception as error:
                failure = error
        notice_again(f"algorithm {method}", self._failure(method, failure))
        return None

    def _directly(self, decide: Callable[[Ask], T]) -> Outcome[T]:
        try:
            return Outcome(decide(lambda function: function()))
        except (R3LError, lmdb.Error):
            raise
        except Exception as error:
            return Outcome(error=error)

    def _run_in_time(self, method: Method, decide: Callable[[Ask], T]) -> Outcome[T]:
        """Calls `decide` in another thread."""
        worker = self._worker or TimedWorker("algorithm")
        self._worker = None
        try:
            outcome = worker.run(decide, LIMIT_S)
        except BaseException as error:
            worker.give_up()
            if not isinstance(error, TimeoutError):
                raise
            self._rests_until[method] = time.monotonic() + REST * LIMIT_S
            return Outcome(error=error)
        self._worker = worker
        return outcome

    def _failure(self, method: Method, error: BaseException) -> str:
        """Describes a failed call in one line."""
        where, file = "", getattr(sys.modules.get(type(self.algorithm).__module__), "__file__", "")
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == file:
                where = f" in line {frame.lineno}"
        why = traceback.format_exception_only(error)[-1].strip()[:200]
        return f"algorithm {self.algorithm.name}: {method} failed{where}; {why}; {INSTEAD[method]}"

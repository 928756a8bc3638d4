"""Finds loggers by name. Every logger except TensorBoard runs in its own thread, so that a slow or
broken service never delays or ends the training."""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeVar

from learner.metrics.loggers.logger import Logger, LoggerContext, check_installed
from r3l.errors import UserError, did_you_mean
from r3l.notices import notice_again

log = logging.getLogger(__name__)
WAITING = 1000  # calls, some hundred steps
CLOSE_S = 30.0

Call = Callable[[Logger], None]
T = TypeVar("T")
LOGGERS = {
    "tensorboard": "learner.metrics.loggers.tensorboard:TensorBoard",
    "wandb": "learner.metrics.loggers.wandb_logger:WandbLogger",
    "mlflow": "learner.metrics.loggers.mlflow_logger:MLflowLogger",
    "trackio": "learner.metrics.loggers.trackio_logger:TrackioLogger",
}
SYNCHRONOUS = {"tensorboard"}
"""Loggers that write to the run's own disk and handle disk failures themselves."""


def check_entries(entries: Iterable[str]) -> None:
    """Checks the setting `log`. Raises UserError if a logger is unknown, unusable or set twice."""
    names = [entry.partition(":")[0] for entry in entries]
    for name, entry in zip(names, entries, strict=True):
        if name not in LOGGERS:
            known = ", ".join(LOGGERS)
            raise UserError(
                f"log {name}: unknown{did_you_mean(name, LOGGERS)}; the loggers are {known}"
            )
        if names.count(name) > 1:
            raise UserError(f"log {name}: named twice; name each logger once")
        if name not in SYNCHRONOUS:
            kind = resolve_name(LOGGERS[name])
            check_installed(name, kind.package)
            kind.check(entry.partition(":")[2])


def start(context: LoggerContext) -> list[Logger]:
    """Starts the loggers of the setting `log`. Each runs in its own thread, except TensorBoard."""
    made: list[Logger] = []
    for entry in context.config.log:
        name, _, target = entry.partition(":")
        make = partial(resolve_name(LOGGERS[name]), replace(context, target=target))
        made.append(make() if name in SYNCHRONOUS else Background(name, make))
    return made


class Background(Logger):
    """Runs a logger in a thread of its own. Queues at most WAITING calls. A call that fails or
    finds the queue full is lost, with a notice."""

    def __init__(self, name: str, make: Callable[[], Logger]) -> None:
        self.name = name
        self._calls: queue.Queue[Call | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, args=(make,), name=name, daemon=True)
        self._thread.start()

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        self._later(lambda logger: logger.scalars(version, metrics))

    def histograms(self, version: int, histograms: Mapping[str, Any]) -> None:
        self._later(lambda logger: logger.histograms(version, histograms))

    def close(self) -> None:
        """Writes all queued data. Waits at most 2 * CLOSE_S seconds."""
        with suppress(queue.Full):  # then the thread is alive
            self._calls.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._notice("did not end in time; its last metrics may be missing")

    def _later(self, call: Call) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._notice(f"is {WAITING} writes behind; further writes are lost")

    def _work(self, make: Callable[[], Logger]) -> None:
        logger = self._tried("could not be started", make)
        while (call := self._calls.get()) is not None:
            if logger is not None:
                self._tried("could not be written", partial(call, logger))
        if logger is not None:
            self._tried("could not be written", logger.close)

    def _tried(self, what: str, call: Callable[[], T]) -> T | None:
        """Returns the result of `call`. If `call` raises, shows a notice and returns None."""
        try:
            return call()
        except Exception as error:  # a logger's library may raise anything
            log.warning("log %s: %s", self.name, what, exc_info=error)
            self._notice(f"{what} ({type(error).__name__}: {error}); training continues")
            return None

    def _notice(self, text: str) -> None:
        notice_again(f"log {self.name}", f"log {self.name}: {text}")

"""Runs a logger in a thread, so that a slow or broken service never delays or ends a run."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from learner.metrics.loggers.logger import Logger
from r3l.process.notices import notice_again

log = logging.getLogger(__name__)
WAITING = 1000  # calls, some hundred steps
CLOSE_S = 30.0

Call = Callable[[Logger], None]
T = TypeVar("T")


class Background(Logger):
    """Creates a logger in its own thread, and passes calls to it there, in order. A call is lost,
    with a notice, if it fails or if WAITING calls are already queued."""

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
        """Write all queued data, for at most CLOSE_S."""
        with suppress(queue.Full):  # the thread is alive
            self._calls.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._notice(f"did not end within {CLOSE_S:g} s; its last metrics may be missing")

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
        """Returns the call's result; None if it failed."""
        try:
            return call()
        except Exception as error:  # a logger's library may raise anything
            log.warning("log %s: %s", self.name, what, exc_info=error)
            self._notice(f"{what} ({type(error).__name__}: {error}); training continues")
            return None

    def _notice(self, text: str) -> None:
        notice_again(f"log {self.name}", f"log {self.name}: {text}")

"""Prints the first failure of each cause."""

import logging
import traceback
from collections.abc import Callable

from r3l.errors import EpisodeError
from r3l.notices import notice

log = logging.getLogger(__name__)

MOST = 20  # causes that are explained


class FirstFailures:
    """Logs the first failure of each cause with a traceback, and notifies the user with `say`."""

    def __init__(self, say: Callable[[str], None] = notice) -> None:
        self.say = say
        self.causes: set[str] = set()

    def __call__(self, error: EpisodeError) -> None:
        """Reports a failed attempt."""
        if error.cause in self.causes or len(self.causes) >= MOST:
            return
        self.causes.add(error.cause)
        known = error.facts.get("traceback")  # of another process
        shown = known or "".join(traceback.format_exception(error))
        log.error("the first attempt that failed with %s: %s\n%s", error.cause, error, shown)
        self.say(f"an attempt failed, counted as {error.cause}: {error}; traceback in this log")

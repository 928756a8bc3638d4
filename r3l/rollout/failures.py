"""Turns errors into failures of attempts, and prints the first failure of each cause."""

import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from r3l.errors import EpisodeError, ExploreFailed, RecordFailed
from r3l.notices import notice
from r3l.rollout.env_calls import describe_error, trace

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


def record_failed(error: Exception) -> RecordFailed:
    """Turns an error that was raised while making a record into the failure of the attempt or the
    answer, with its traceback. Its cause is record_RecordError, record_IndexError and so on."""
    return RecordFailed(
        f"it cannot be recorded: {describe_error(error)}",
        cause=f"record_{type(error).__name__}",
        traceback=trace(error),
    )


async def without_exit(work: Callable[[], Awaitable[Any]]) -> None:
    """Awaits the code of an algorithm. Raises ExploreFailed if it exits."""
    try:
        await work()
    except SystemExit as error:
        raise ExploreFailed(
            f"explore exits ({error}); raise an error instead", cause="explore_SystemExit"
        ) from error

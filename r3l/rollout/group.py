"""Explores one group with an algorithm, and resolves every slot of its plan.

algorithm.explore(x) ─► verbs (r3l.rollout.exploration) ─► one result per slot
        │
        └─ raises, hangs, or leaves slots out ─► these slots fail with a counted cause
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

from r3l.errors import EpisodeError, ExploreFailed, PlanError
from r3l.records import SlotResult
from r3l.rollout.env_calls import describe_error, trace
from r3l.rollout.exploration import Exploration
from r3l.rollout.failures import without_exit

log = logging.getLogger(__name__)

Explore = Callable[[Exploration], Awaitable[None]]

STALL_S = 120.0
"""Seconds without a verb in progress after which an `explore` counts as hanging."""

ENDING_S = 10.0
"""Seconds that a cancelled `explore` gets to close its environments."""


async def explore_group(
    explore: Explore, x: Exploration, *, stall_s: float = STALL_S
) -> list[SlotResult]:
    """Runs an algorithm's `explore`. Returns one result per slot of the plan, in their order.

    If `explore` raises, waits for `stall_s` seconds for something other than a verb, or leaves
    slots out, these slots fail, and `x.on_failure` is called. Errors of the engine and the store,
    such as EngineDead and LeaseLost, end the group and are raised, even if `explore` catches them.
    No other error is raised. Work that `explore` leaves behind is ended.
    """
    failure = await _failure_of(explore, x, stall_s)
    if x.broken is not None:
        raise x.broken
    if failure is None and x.open:
        failure = ExploreFailed(
            f"explore ended without a result for slot {x.open[0]}; call play, retry, skip or fail "
            f"for each of the plan's {x.plan.slots} slots",
            cause="not_explored",
        )
    if failure is not None:
        x.on_failure(failure)
        await x.fail_open(failure.cause)
    return [x.results[slot] for slot in range(x.plan.slots)]


async def _failure_of(explore: Explore, x: Exploration, stall_s: float) -> EpisodeError | None:
    """Runs `explore`, and ends all of its work. Returns its failure, if any."""
    exploring, x.idle_since = (
        asyncio.create_task(without_exit(lambda: explore(x))),
        time.monotonic(),
    )
    try:
        while not exploring.done():
            await asyncio.wait({exploring}, timeout=stall_s / 4)
            idle_s = 0.0 if x.running else time.monotonic() - x.idle_since
            if not exploring.done() and idle_s > stall_s:
                return ExploreFailed(
                    f"explore waits for {idle_s:.0f} s without a verb in progress; slots {x.open} "
                    "are open",
                    cause="explore_stalled",
                )
        if exploring.cancelled():
            return ExploreFailed("explore was cancelled by itself", cause="explore_cancelled")
        error = exploring.exception()
        return None if error is None else _read(error)
    finally:
        x.ended = True
        left = {task for task in (exploring, *x.working) if task.cancel()}
        if left:
            ended, _ = await asyncio.wait(left, timeout=ENDING_S)
            for task in ended:  # a verb may refuse to begin before its cancellation arrives
                if not task.cancelled() and (late := task.exception()) is not None:
                    log.info("what explore left behind ended with: %s", describe_error(late))


def _read(error: BaseException) -> EpisodeError:
    """Turns an error of `explore` into the failure of its slots."""
    first = next(_flat(error))
    if isinstance(first, EpisodeError):
        return first
    name = "bad_plan" if isinstance(first, PlanError) else f"explore_{type(first).__name__}"
    return ExploreFailed(
        f"explore raised {describe_error(first)}", cause=name, traceback=trace(first)
    )


def _flat(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, or the errors of a group of errors."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _flat(each)
    else:
        yield error

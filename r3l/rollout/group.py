"""Explores one group with an algorithm, and resolves every slot of its plan.

algorithm.explore(x) ─► verbs (r3l.rollout.exploration) ─► one result per slot
        │
        └─ raises, hangs, or leaves slots out ─► these slots fail with a counted cause
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator

from r3l.errors import EpisodeError, ExploreFailed, PlanError, R3LError
from r3l.records import SlotResult
from r3l.rollout.exploration import Exploration

Explore = Callable[[Exploration], Awaitable[None]]

STALL_S = 120.0
"""Seconds without a verb in progress after which an `explore` counts as hanging."""

ENDING_S = 10.0
"""Seconds that a cancelled `explore` gets to close its environments."""


async def explore_group(
    explore: Explore, x: Exploration, *, stall_s: float = STALL_S
) -> list[SlotResult]:
    """Runs an algorithm's `explore`. Returns one result per slot of the plan, in their order.

    If `explore` raises, waits for nothing for `stall_s` seconds or leaves slots out, these slots
    fail, and `x.on_failure` is called. Errors of the engine and the store, such as EngineDead and
    LeaseLost, end the group and are raised.
    """
    failure = await _failure_of(explore, x, stall_s)
    left = [slot for slot in range(x.plan.slots) if slot not in x.results]
    if failure is None and left:
        failure = ExploreFailed(
            f"explore ended without a result for slot {left[0]}; call play, retry, skip or fail "
            f"for each of the plan's {x.plan.slots} slots",
            cause="not_explored",
        )
    if failure is not None:
        x.on_failure(failure)
        for slot in left:
            await x.fail(slot, failure.cause)
    return [x.results[slot] for slot in range(x.plan.slots)]


async def _failure_of(explore: Explore, x: Exploration, stall_s: float) -> EpisodeError | None:
    """Runs `explore`. Returns the failure of the algorithm, if any. Raises other R3LErrors."""
    exploring = asyncio.ensure_future(explore(x))
    try:
        while not exploring.done():
            await asyncio.wait({exploring}, timeout=stall_s / 4)
            idle_s = 0.0 if x.running else time.monotonic() - x.idle_since
            if not exploring.done() and idle_s > stall_s:
                return ExploreFailed(
                    f"explore waits for {idle_s:.0f} s without a verb in progress; slots "
                    f"{[slot for slot in range(x.plan.slots) if slot not in x.results]} are open",
                    cause="explore_stalled",
                )
        exploring.result()
    except Exception as error:
        return _read(error)
    finally:
        if exploring.cancel():
            await asyncio.wait({exploring}, timeout=ENDING_S)
    return None


def _read(error: Exception) -> EpisodeError:
    """Turns an error of `explore` into the failure of its slots. Raises what ends the group."""
    causes = list(_flat(error))
    for cause in causes:
        if isinstance(cause, R3LError) and not isinstance(cause, EpisodeError | PlanError):
            raise cause from error
    first = causes[0]
    if isinstance(first, EpisodeError):
        return first
    name = "bad_plan" if isinstance(first, PlanError) else f"explore_{type(first).__name__}"
    text = "".join(traceback.format_exception(first))
    return ExploreFailed(
        f"explore raised {type(first).__name__}: {str(first)[:500]}",
        cause=name,
        traceback=text[-8000:],
    )


def _flat(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, or the errors of a group of errors."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _flat(each)
    else:
        yield error

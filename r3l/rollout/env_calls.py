"""Calls environments. Checks their return values, and turns every fault into an EnvironmentFailed
with a cause."""

import asyncio
import inspect
import logging
import math
import sysconfig
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from r3l.errors import EnvironmentFailed
from r3l.records import LARGEST_REWARD, MOST_PARTS, PART
from r3l.rollout.env_interface import Playable, ResetAnswer, StepAnswer
from r3l.text import label, plain

log = logging.getLogger(__name__)

T = TypeVar("T")
Played = TypeVar("Played", bound=Playable)
LONGEST_TRACEBACK = 8000  # characters, the last ones
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_OURS = tuple(str(Path(__file__).parents[2] / room) for room in ("r3l", "envs"))


def read_reset(name: str, answer: object) -> ResetAnswer:
    """Checks the (observation, info) that a reset of environment `name` returned. Raises
    EnvironmentFailed with cause bad_reset or bad_observation."""
    observation, info = _shaped(name, "reset", answer, 2)
    return read_text(name, "observation", observation), info if isinstance(info, dict) else {}


def read_step(name: str, answer: object) -> StepAnswer:
    """Checks the (observation, reward, terminated, truncated, info) of a step of environment
    `name`. Raises EnvironmentFailed with cause bad_step, bad_observation or bad_reward."""
    observation, reward, terminated, truncated, info = _shaped(name, "step", answer, 5)
    number = number_of(reward)
    if not abs(number) <= LARGEST_REWARD:
        raise EnvironmentFailed(
            f"{name}: reward is {reward!r:.80}; it must be a number within ±{LARGEST_REWARD:g}",
            cause="bad_reward",
        )
    text = read_text(name, "observation", observation)
    info = info if isinstance(info, dict) else {}
    return text, number, bool(terminated), bool(truncated), info


def fault_in(info: dict[str, Any]) -> str:
    """Returns the fault named in the info of a step, or "" if there is none."""
    fault = info.get("fault")
    return label(fault) if isinstance(fault, str) else ""


def parts_in(info: Mapping[str, Any], key: str = "rewards") -> dict[str, float]:
    """Reads the named parts of a step's reward, which are shown but not trained on. With another
    `key`, reads other named numbers. Skips invalid numbers, and keeps at most MOST_PARTS."""
    given = info.get(key)
    items = given.items() if isinstance(given, dict) else ()
    parts = {
        plain(name, "part"): number_of(value)
        for name, value in items
        if isinstance(name, str)
        and PART.fullmatch(name)
        and abs(number_of(value)) <= LARGEST_REWARD
    }
    return dict(list(parts.items())[:MOST_PARTS])


async def guarded(call: Callable[[], Awaitable[T] | T]) -> T:
    """Calls user code and awaits the result if needed. Turns any exception of this code, even
    SystemExit, into EnvironmentFailed, so that only one attempt fails."""
    waits = False
    try:
        answer = call()
        if not inspect.isawaitable(answer):
            return answer
        waits = True
        return await answer
    except EnvironmentFailed:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if waits and (isinstance(error, GeneratorExit) or (task and task.cancelling())):
            raise  # the attempt is stopped from outside
        raise failure_of(error) from error


@asynccontextmanager
async def open_env(make_env: Callable[[], Played]) -> AsyncIterator[Played]:
    """Makes an environment, and closes it after use. If closing fails, just logs the error. Raises
    EnvironmentFailed."""
    env: Played = await guarded(make_env)
    try:
        yield env
    finally:
        try:
            await guarded(env.close)
        except EnvironmentFailed as error:
            log.warning("closing an environment: %s", error)


def failure_of(error: BaseException) -> EnvironmentFailed:
    """Turns an exception from user code into the failure of an attempt, with its traceback."""
    return EnvironmentFailed(
        f"the environment raised {describe_error(error)}",
        cause=f"environment_{type(error).__name__}",
        traceback=trace(error),
    )


def describe_error(error: BaseException) -> str:
    """Returns an error's class, text and place in one sentence."""
    try:
        said = str(error)[:500]
    except Exception as unsaid:  # the class may be a user's
        said = f"without a text ({type(unsaid).__name__})"
    return f"{type(error).__name__}: {said} ({place(error)})"


def trace(error: BaseException) -> str:
    """Returns the end of an error's traceback."""
    return "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:]


def place(error: BaseException) -> str:
    """Returns the file and line of an error's innermost frame in user code. If user code has no
    frame, uses the innermost frame of r3l or envs."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "no traceback"
    own = [f for f in frames if not f.filename.startswith((*_LIBRARIES, "<"))] or frames
    frame = ([f for f in own if not f.filename.startswith(_OURS)] or own)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _shaped(name: str, call: str, answer: object, length: int) -> Any:
    if not isinstance(answer, tuple | list) or len(answer) != length:
        count = f" of {len(answer)}" if isinstance(answer, tuple | list) else ""
        raise EnvironmentFailed(
            f"{name}: {call} returned {type(answer).__name__}{count} "
            f"instead of a tuple of {length} values",
            cause=f"bad_{call}",
        )
    return answer


def number_of(reward: object) -> float:
    """Returns a reward as a float: infinite if it is too large, NaN if it is not a number. Numbers
    of other libraries, such as numpy or torch, are accepted too, and so are arrays of one
    number."""
    if not isinstance(reward, Real | Decimal):
        with suppress(AttributeError, TypeError, ValueError, RuntimeError):
            reward = reward.item()  # type: ignore[attr-defined]
    try:
        return float(reward) if isinstance(reward, Real | Decimal) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return math.inf
    except ValueError:  # Decimal("sNaN")
        return math.nan


def read_text(name: str, what: str, value: object) -> str:
    """Returns a text of environment `name`. Raises EnvironmentFailed with cause bad_observation or
    bad_feedback if the text cannot be stored or sent."""
    try:
        return plain(value, what)
    except ValueError as error:
        raise EnvironmentFailed(f"{name}: {error}", cause=f"bad_{what}") from None

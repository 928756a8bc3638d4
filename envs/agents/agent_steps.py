"""Runs the processes of the environment `agent`, and reads the results of agents and graders."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from envs.agents.agent_runner import MAIN, AgentRunner, ProcessState, Soon
from r3l.errors import EnvironmentFailed
from r3l.records import LARGEST_REWARD, PART
from r3l.rollout.env_calls import guarded, number_of, parts_in
from r3l.views.tape import TapedCall


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: its reward (1.0: full success), reward parts, closing remark and
    reason."""

    reward: float
    parts: dict[str, float] = field(default_factory=dict)
    feedback: str = ""
    finish: str = "terminated"


async def run_process(
    runner: AgentRunner,
    name: str,
    start: Callable[[], Soon[ProcessState]],
    limit_s: float,
    changed: asyncio.Event | None = None,
) -> tuple[ProcessState, bool]:
    """Starts a process. Waits at most `limit_s` seconds until the process exits or `changed` is
    set. Then kills the process and its children. Returns the process's state, and whether the
    process stayed within `limit_s`. Raises EpisodeError."""
    state, ended = await guarded(start), changed or asyncio.Event()
    if not state.pid:  # it was done without a process of its own
        return state, True
    in_time = True
    with _set_at_end(ended, state.pid):
        try:
            async with asyncio.timeout(limit_s):
                await ended.wait()
        except TimeoutError:
            in_time = False
    return await guarded(lambda: runner.stop(name)), in_time


async def grade(runner: AgentRunner, calls: Sequence[TapedCall], limit_s: float) -> Any:
    """Returns the grader's result. Raises EnvironmentFailed if the grader fails or is too slow."""
    shown = [{"messages": list(call.messages), "reply": call.reply} for call in calls if call.reply]
    state, in_time = await run_process(runner, MAIN, lambda: runner.grade(shown), limit_s)
    if not in_time or state.exit != 0:
        why = state.stderr if in_time else "it took too long"
        raise failed("grader_failed", f"the grader failed: {why}")
    return last_line(state, "grader_failed", "the grader")


def outcome_of(result: Any, threshold: float, finish: str) -> Outcome:
    """Reads a result: a number, {reward, parts, feedback} or {failed}. Raises EnvironmentFailed."""
    given = result if isinstance(result, dict) else {"reward": result}
    if cause := str(given.get("failed") or ""):
        name = cause if PART.fullmatch(cause) else "agent_failed"
        said = f": {given['feedback']!s:.500}" if given.get("feedback") else ""
        raise failed(name, f"the result reports a failure: {cause!r:.300}{said}")
    reward = number_of(given.get("reward")) / threshold
    if not abs(reward) <= LARGEST_REWARD:
        raise failed(
            "no_reward",
            f"the result {result!r:.200} has no reward: it must be a number within "
            f"±{LARGEST_REWARD:g}, or an object with such a reward",
        )
    parts = parts_in({"rewards": given.get("parts")})
    feedback = str(given.get("feedback") or "").encode(errors="replace").decode()
    return Outcome(reward, parts, feedback, finish)


def last_line(state: ProcessState, cause: str, who: str) -> Any:
    """Parses the last line of a process's output. Raises EnvironmentFailed if it is not JSON."""
    try:
        return json.loads(state.stdout)
    except (ValueError, RecursionError):
        said, example = state.stdout, '{"reward": 1.0}'
        raise failed(
            cause, f"{who}'s last line is {said!r:.200}; it must be JSON such as {example}"
        ) from None


def failed(cause: str, message: str) -> EnvironmentFailed:
    return EnvironmentFailed(message, cause=cause)


@contextmanager
def _set_at_end(ended: asyncio.Event, pid: int) -> Iterator[None]:
    """Sets `ended` when the process `pid` has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        ended.set()
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ended.set)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        os.close(fd)

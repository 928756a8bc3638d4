"""Reads what an agent or a grader says at its end: the reward of an attempt."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from r3l.errors import EnvironmentFailed
from r3l.records import LARGEST_REWARD, PART
from r3l.rollout.env_calls import number_of, parts_in

State = dict[str, Any]
"""A process: `exit`, None while it runs, and the last lines of `stdout` and `stderr`."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: reward (1.0: full success), its parts, closing remark and finish."""

    reward: float
    parts: dict[str, float] = field(default_factory=dict)
    feedback: str = ""
    finish: str = "terminated"


def outcome_of(result: Any, threshold: float, finish: str) -> Outcome:
    """Reads a number, {reward, parts, feedback} or {failed}. Raises EnvironmentFailed."""
    given = result if isinstance(result, dict) else {"reward": result}
    if cause := str(given.get("failed") or ""):
        name = cause if PART.fullmatch(cause) else "agent_failed"
        raise failed(name, f"the result reports a failure: {cause!r:.300}")
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


def graded(state: State, in_time: bool) -> Any:
    """Returns the result of a grader. Raises EnvironmentFailed if it failed or took too long."""
    if not in_time or state["exit"] != 0:
        why = state["stderr"] if in_time else "it took too long"
        raise failed("grader_failed", f"the grader failed: {why}")
    return last_line(state, "grader_failed", "the grader")


def last_line(state: State, cause: str, who: str) -> Any:
    """Returns what a process printed last. Raises EnvironmentFailed unless it is JSON."""
    line = state.get("stdout", "")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        example = '{"reward": 1.0}'
        raise failed(
            cause, f"{who}'s last line is {line!r:.200}; it must be JSON such as {example}"
        ) from None


def failed(cause: str, message: str) -> EnvironmentFailed:
    return EnvironmentFailed(message, cause=cause)

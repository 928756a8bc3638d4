"""Attempts of an evaluation, as `learner.evaluation.conversation` makes them of slots."""

from typing import Any

from learner.evaluation.conversation import Conversation
from r3l.views.attempt_view import StepView


def turn(observation: str, action: str, length: int, reward: float | None = None) -> StepView:
    return StepView(observation, action, "0", 0.0, length, True, reward)


def attempted(
    task: str, attempt: int = 0, family: str = "", reward: float = 0.0, **more: Any
) -> Conversation:
    """An attempt; with a `cause`, one that failed."""
    failed = bool(more.get("cause"))
    known = {"role": "base", "slot": 0, "base": 0, "cause": "", "length": None if failed else 0}
    known |= {"status": "failed" if failed else "done", "reward": None if failed else reward}
    known["generated"] = sum(step.length for step in more.get("steps", ()))
    return Conversation(task_id=task, attempt=attempt, family=family, **known | more)  # type: ignore[arg-type]

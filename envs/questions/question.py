"""The base of environments with one question: mathematics, Countdown and reasoning-gym.

step = attempt     question ─► whole solution ─► "Incorrect. …, try again" ─► whole solution …
step = paragraph   question ─► a paragraph ─► "Continue." ─► a paragraph ─► … ─► answer: the end

With step=attempt, a retry replaces a whole wrong solution. With step=paragraph, a retry replaces
one paragraph and all later ones. The reward is paid once, for the answer that ends the attempt.
"""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from msgspec import structs

from envs import requirements
from envs.base import Split, TaskSource
from envs.questions.final_answer import tagged
from r3l.records import Task
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer

Step = Literal["attempt", "paragraph"]
PARAGRAPH_END = "\n\n"
CONTINUE = "Continue."


@dataclass(frozen=True)
class Judgement:
    """The reward of an answer, and a remark. The remark does not reveal the correct answer.

    `reward`: 1.0 if correct. `fault`: the name of an error in the judging, "" if none.
    """

    reward: float
    remark: str
    fault: str = ""


@dataclass(frozen=True)
class Pace:
    """Settings for how a question is played.

    `step`: a step is a whole solution (attempt) or one paragraph of it (paragraph). `attempts`:
    number of answers allowed, always one in evaluation and with step=paragraph. `paragraphs`: the
    most paragraphs of a solution. `max_response_tokens`: the most tokens of a response (default:
    1024, or 256 for a paragraph).
    """

    step: Step = "attempt"
    attempts: int = 3
    paragraphs: int = 16
    max_response_tokens: int | None = None

    def __post_init__(self) -> None:
        requirements.choice("step", self.step, get_args(Step))
        for name in ("attempts", "paragraphs"):
            requirements.integer(name, getattr(self, name), 1, 100_000)
        if self.max_response_tokens is not None:
            requirements.integer("max_response_tokens", self.max_response_tokens, 1, 100_000)


class Question(ABC):
    """Asks one question in each attempt. A subclass poses the question and judges the answer.

    `ask` and `form` are parts of the system prompt: what to do, and how to write the answer.
    """

    def __init__(self, spec: EnvSpec, pace: Pace, *, ask: str, form: str) -> None:
        self.pace, self.form = pace, form
        by_paragraph = pace.step == "paragraph"
        manner = (
            "Write one short paragraph per reply; you will be asked to continue. In the last one"
            if by_paragraph
            else "Reason step by step, then"
        )
        self.spec = replace(
            spec,
            system_prompt=f"{ask} {manner} give the final answer {form}.",
            max_steps=pace.paragraphs if by_paragraph else pace.attempts,
            max_response_tokens=pace.max_response_tokens or (256 if by_paragraph else 1024),
            stop=[PARAGRAPH_END] if by_paragraph else [],
        )
        self.allowed, self.used, self.steps, self.reward, self.ended = 1, 0, 0, 0.0, True

    @abstractmethod
    def pose(self, seed: int, options: dict[str, Any]) -> str:
        """Returns the question that a task's seed and options determine."""

    def find(self, text: str) -> str | None:
        """Returns the final answer in a response, or else None. By default, reads answer tags."""
        return tagged(text)

    @abstractmethod
    def judge(self, answer: str) -> Judgement:
        """Judges an answer to the current question."""

    @abstractmethod
    def solution(self) -> str:
        """Returns a response that answers the current question."""

    def right_answers(self) -> list[str]:
        """Returns all responses that consist only of a right answer, if the first answer decides
        the attempt and there are few such responses. By default, returns none."""
        return []

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Poses the question of a task. The task's option `attempts` overrides `Pace.attempts`."""
        given = options or {}
        text = self.pose(seed, given)
        attempts = int(given.get("attempts", self.pace.attempts))
        self.allowed = attempts if self.pace.step == "attempt" else 1
        self.used, self.steps, self.reward, self.ended = 0, 0, 0.0, False
        return text, {}

    def step(self, action: str) -> StepAnswer:
        if self.ended:
            return "It is over.", 0.0, True, False, {}
        self.steps += 1
        answer = self.find(action)
        if answer is None and self.pace.step == "paragraph":
            self.ended = self.steps >= self.pace.paragraphs
            reply = f"No final answer in {self.steps} paragraphs." if self.ended else CONTINUE
            return reply, 0.0, False, self.ended, {}
        self.used += 1
        judged = (
            Judgement(0.0, f"No final answer was found; give it {self.form}.")
            if answer is None
            else self.judge(answer)
        )
        left = self.allowed - self.used
        self.ended = judged.reward >= 1.0 or left <= 0
        answered = {"answered": float(answer is not None)}
        info = {"fault": judged.fault, "rewards": answered}
        if not self.ended:
            again = f"{judged.remark} Try again, {left} attempt{'s' * (left > 1)} left."
            return again, 0.0, False, False, info
        self.reward = judged.reward
        return judged.remark, judged.reward, True, False, info

    def close(self) -> None:  # noqa: B027 - few subclasses have anything to release
        """Does nothing."""

    def snapshot(self) -> bytes:
        """Returns the attempt's state as JSON, without the question, which `reset` poses again."""
        return json.dumps([self.allowed, self.used, self.steps, self.reward, self.ended]).encode()

    def restore(self, state: bytes) -> None:
        self.allowed, self.used, self.steps, self.reward, self.ended = json.loads(state)

    def feedback(self) -> str:
        """Says which of the answers was right, or that none was."""
        if self.used == 0:
            return "No final answer was given."
        if self.reward >= 1.0:
            return f"Answer {self.used} was right."
        return "The answer was not right." if self.used == 1 else "No answer was right."

    def demonstration(self) -> list[str]:
        """Returns a correct solution, split into steps."""
        text = self.solution()
        if self.pace.step == "attempt":
            return [text]
        parts = [part.strip() for part in text.split(PARAGRAPH_END) if part.strip()]
        answered = next(k for k, part in enumerate(parts) if self.find(part) is not None)
        # Paragraphs beyond the limit are joined.
        first = max(0, answered + 1 - self.pace.paragraphs)
        return [PARAGRAPH_END.join(parts[: first + 1]), *parts[first + 1 : answered + 1]]


@dataclass(frozen=True)
class OneEvalAttempt:
    """The tasks of the given source. In the eval split, each task allows only one answer."""

    source: TaskSource

    def tasks(self, split: Split, count: int, seed: int = 0, start: int = 0) -> list[Task]:
        tasks = self.source.tasks(split, count, seed, start)
        if split != "eval":
            return tasks
        return [structs.replace(task, options=task.options | {"attempts": 1}) for task in tasks]

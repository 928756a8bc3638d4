"""reasoning-gym's sums, with a teacher whose reflections add step by step.

r3l-learner warmup --model smollm2 --env lab/real_model/sums.py:Sums …
"""

import random
import re
from collections.abc import Iterator
from typing import Any

from envs.base import SeededTasks, Skill, TaskSource
from envs.questions.reasoning_gym import Reasoning
from r3l.rollout.reflection import FIELDS

NEAR = (-20, -10, -2, -1, 1, 2, 10, 20)
"""How far a wrong answer of the demonstrator is from the right one."""


class Sums(Reasoning):
    """One answer to a sum of chain_sum, as envs.base.Demonstrating. `config`: settings of the
    family."""

    def __init__(self, *, config: dict[str, Any] | None = None) -> None:
        super().__init__("chain_sum", config=config, attempts=1, max_response_tokens=24)
        self.given = ""

    @staticmethod
    def task_source(family: str = "", **_: Any) -> TaskSource:
        """Returns generated sums."""
        return SeededTasks("sums")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.given = self.find(action) or "nothing"
        return super().step(action)

    def demonstrate(self, skill: Skill, rng: random.Random, advice: str = "") -> str:
        """Returns the right answer; a wrong one if the demonstrator makes mistakes and was not told
        the right one."""
        right = self.solution()
        if right in advice or not skill.mistakes:
            return right
        return f"<answer>{int(self.question.entry['answer']) + rng.choice(NEAR)}</answer>"

    def reflection(self) -> dict[str, Any]:
        """Returns a teacher's reflection: a wrong answer is corrected by adding step by step."""
        summary = f"answered {self.given}"
        if self.reward >= 1.0:
            fields: tuple[Any, ...] = (summary, None, "success", None, None)
        else:
            fields = (summary, worked(self.question.entry["question"]), "failure",
                      self.solution(), 0)  # fmt: skip
        return dict(zip(FIELDS, fields, strict=True))

    def vocabulary(self) -> Iterator[str]:
        """Yields the system prompt; a pretrained model needs no more."""
        yield self.spec.system_prompt


def worked(question: str) -> str:
    """Adds the terms of a sum one after the other: "37 - 64 = -27, -27 + 16 = -11"."""
    first, *rest = re.findall(r"(?:[+-] )?-?\d+", question.rpartition(":")[2])
    total, lines = int(first), list[str]()
    for term in rest:
        before, total = total, total + int(term.replace(" ", ""))
        lines.append(f"{before} {term} = {total}")
    return ", ".join(lines)

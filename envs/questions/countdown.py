"""Countdown: reach a target by combining the given numbers, each used once, with + - * /.

countdown         a step is a whole solution (or a paragraph); the answer is a whole expression
countdown-steps   a step is one operation on two of the remaining numbers
"""

import operator
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from envs import requirements
from envs.base import SPLIT_SIZE, SPLITS, SeededTasks, TaskSource, split_of
from envs.questions.arithmetic import ExpressionError, evaluate
from envs.questions.question import Judgement, OneEvalAttempt, Pace, Question, Step
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer

RULES = (
    "Reach the target with the numbers and the signs + - * / and brackets. "
    "Use every number exactly once."
)
APPLY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


@dataclass(frozen=True)
class Puzzle:
    """A puzzle. `solution`: an expression that uses each number once to reach the target.
    `operations`: the solution as one operation per step."""

    numbers: tuple[int, ...]
    target: int
    solution: str
    operations: tuple[str, ...]

    def __str__(self) -> str:
        return f"numbers {', '.join(map(str, self.numbers))}; target {self.target}"


@dataclass(frozen=True)
class Puzzles:
    """Makes puzzles: `count` numbers from 1 to `largest` and a target from 1 to `highest`."""

    count: int = 4
    largest: int = 50
    highest: int = 100

    def __post_init__(self) -> None:
        # With fewer or smaller numbers a split would have few sets of them, or none.
        for name, low, high in (("count", 3, 6), ("largest", 9, 999), ("highest", 9, 9999)):
            requirements.integer(name, getattr(self, name), low, high)

    def make(self, seed: int) -> Puzzle:
        """Returns the puzzle of a seed. The seed determines the split (envs.base.SPLIT_SIZE). Two
        splits never share a set of numbers."""
        split = SPLITS[seed // SPLIT_SIZE % len(SPLITS)]
        rng = random.Random(f"countdown/{seed}")
        while True:
            numbers = [rng.randint(1, self.largest) for _ in range(self.count)]
            if split_of(str(sorted(numbers))) == split:
                for _ in range(20):
                    puzzle = _combined(numbers, rng)
                    if 1 <= puzzle.target <= self.highest:
                        return puzzle


class Countdown(Question):
    """One puzzle per seed. `count`, `largest`, `highest`: see `Puzzles`. Other settings: see
    envs.questions.question.Pace."""

    in_process = True

    def __init__(
        self,
        *,
        count: int = 4,
        largest: int = 50,
        highest: int = 100,
        step: Step = "attempt",
        attempts: int = 3,
        paragraphs: int = 16,
        max_response_tokens: int | None = None,
    ) -> None:
        self.puzzles = Puzzles(count, largest, highest)
        self.puzzle = self.puzzles.make(0)
        spec = EnvSpec("countdown", "", 1)
        pace = Pace(step, attempts, paragraphs, max_response_tokens)
        super().__init__(spec, pace, ask=RULES, form="as <answer>expression</answer>")

    @classmethod
    def task_source(cls, **_: Any) -> TaskSource:
        return OneEvalAttempt(SeededTasks("countdown"))

    def pose(self, seed: int, options: dict[str, Any]) -> str:
        self.puzzle = self.puzzles.make(seed)
        return str(self.puzzle)

    def judge(self, answer: str) -> Judgement:
        """Judges an expression, or the left side of an equation. The expression must equal the
        target and use exactly the given numbers."""
        try:
            result = evaluate(answer.partition("=")[0])
        except ExpressionError as error:
            return Judgement(0.0, f"That is not an expression: {error}.")
        used, given = Counter(result.numbers), Counter(self.puzzle.numbers)
        if too_many := used - given:
            return Judgement(0.0, f"That uses {_named(too_many)} more often than given.")
        if unused := given - used:
            return Judgement(0.0, f"That leaves {_named(unused)} unused.")
        if result.value != self.puzzle.target:
            wanted = self.puzzle.target
            return Judgement(0.0, f"That is {_shown(result.value)}, the target is {wanted}.")
        return Judgement(1.0, "Correct.")

    def solution(self) -> str:
        """Returns the expression from which the puzzle was made."""
        return f"<answer>{self.puzzle.solution}</answer>"


class CountdownSteps:
    """Countdown with one operation per step. An operation replaces two numbers by the result. The
    last number must be the target. `slips`: extra steps, for invalid operations."""

    in_process = True

    def __init__(
        self, *, count: int = 4, largest: int = 50, highest: int = 100, slips: int = 2
    ) -> None:
        self.puzzles = Puzzles(count, largest, highest)
        self.puzzle = self.puzzles.make(0)
        self.left: list[Fraction] = []
        self.steps = 0
        self.spec = EnvSpec(
            name="countdown-steps",
            system_prompt="Reach the target with the numbers. In each step combine two numbers "
            "that are left, like 25 - 7 or 6 * 4; their result replaces them. Answer with the "
            "operation alone.",
            max_steps=count - 1 + slips,
            max_response_tokens=64,
        )

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        self.puzzle = self.puzzles.make(seed)
        self.left, self.steps = [Fraction(number) for number in self.puzzle.numbers], 0
        return str(self.puzzle), {}

    def step(self, action: str) -> StepAnswer:
        if len(self.left) <= 1 or self.steps >= self.spec.max_steps:
            return "It is over.", 0.0, True, False, {}
        self.steps += 1
        fault = self._combine(action)
        if len(self.left) == 1:
            reached = self.left[0] == self.puzzle.target
            reply = "Correct." if reached else f"{self.feedback()} That is not the target."
            return reply, float(reached), True, False, {}
        truncated = self.steps >= self.spec.max_steps
        reply = f"numbers {', '.join(map(_shown, self.left))}; target {self.puzzle.target}"
        return f"{fault} {reply}".strip(), 0.0, False, truncated, {}

    def close(self) -> None:
        """Does nothing."""

    def feedback(self) -> str:
        """Returns a remark with the target and the numbers that are left."""
        return f"Left: {', '.join(map(_shown, self.left))}; the target is {self.puzzle.target}."

    def demonstration(self) -> list[str]:
        return list(self.puzzle.operations)

    def _combine(self, action: str) -> str:
        """Applies the operation in `action`. Returns what is wrong with the action, or ""."""
        number = r"(-?\d+(?:/\d+)?)"
        match = re.fullmatch(rf"\W*?{number}\s*([-+*/×÷−])\s*{number}(?:\s*=.*)?\W*", action[:200])
        if match is None:
            return "That is not an operation on two numbers, like 25 - 7."
        sign = match[2].translate(str.maketrans("×÷−", "*/-"))
        left = list(self.left)
        try:
            a, b = Fraction(match[1]), Fraction(match[3])
            left.remove(a)
            left.remove(b)
            self.left = [*left, APPLY[sign](a, b)]
        except ZeroDivisionError:
            return "That divides by zero."
        except ValueError:
            return f"{match[1]} and {match[3]} are not both left."
        return ""


def _combined(numbers: list[int], rng: random.Random) -> Puzzle:
    """Combines all numbers at random. Every intermediate result is a positive integer."""
    parts, operations = [(number, str(number)) for number in numbers], []
    while len(parts) > 1:
        (a, left), (b, right) = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        if a < b:
            (a, left), (b, right) = (b, right), (a, left)
        signs = ["+", "*", *(["-"] if a > b else []), *(["/"] if b > 1 and a % b == 0 else [])]
        sign = rng.choice(signs)
        operations.append(f"{a} {sign} {b}")
        parts.append((int(APPLY[sign](Fraction(a), Fraction(b))), f"({left} {sign} {right})"))
    target, text = parts[0]
    return Puzzle(tuple(numbers), target, text[1:-1], tuple(operations))


def _named(numbers: Counter[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _shown(number: Fraction) -> str:
    if number.denominator == 1 and abs(number) < 10**12:
        return str(number)
    return str(number) if len(str(number)) <= 24 else "a very large number"

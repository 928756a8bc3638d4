"""Countdown puzzles: numbers, a target, and one way to reach it with all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from envs import requirements
from envs.base import SPLIT_SIZE, SPLITS, split_of

APPLY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


@dataclass(frozen=True)
class Puzzle:
    """A puzzle. `solution`: an expression that reaches `target` and uses each of `numbers` once;
    `operations`: the same, one operation per step."""

    numbers: tuple[int, ...]
    target: int
    solution: str
    operations: tuple[str, ...]

    def __str__(self) -> str:
        return f"numbers {', '.join(map(str, self.numbers))}; target {self.target}"


@dataclass(frozen=True)
class Puzzles:
    """Puzzles by seed: `count` numbers from 1 to `largest`, a target from 1 to `highest`."""

    count: int = 4
    largest: int = 50
    highest: int = 100

    def __post_init__(self) -> None:
        # With fewer or smaller numbers a split would have few sets of them, or none.
        for name, low, high in (("count", 3, 6), ("largest", 9, 999), ("highest", 9, 9999)):
            requirements.integer(name, getattr(self, name), low, high)

    def make(self, seed: int) -> Puzzle:
        """The puzzle of a seed. A set of numbers belongs to one split only, in any order and with
        any target; the seed determines the split (envs.base.SPLIT_SIZE)."""
        split = SPLITS[seed // SPLIT_SIZE % len(SPLITS)]
        rng = random.Random(f"countdown/{seed}")
        while True:
            numbers = [rng.randint(1, self.largest) for _ in range(self.count)]
            if split_of(str(sorted(numbers))) == split:
                for _ in range(20):
                    found = _combined(numbers, rng)
                    if 1 <= found.target <= self.highest:
                        return found


def _combined(numbers: list[int], rng: random.Random) -> Puzzle:
    """Combine all numbers in a random way whose results are all positive integers."""
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

"""Exact arithmetic on whole numbers: a parser; nothing is evaluated as code.

expression = term (("+" | "-") term)*
term       = factor (("*" | "/") factor)*
factor     = "-" factor | "(" expression ")" | digits
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 200
"""Longest expression, characters. Without powers, its value has at most as many digits."""
DEEPEST = 40

_TOKEN = re.compile(r"\s*(?:(\d+)|(.))", re.DOTALL)
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})


class ExpressionError(ValueError):
    """An invalid expression, or one that divides by zero; the message says what is wrong."""


@dataclass(frozen=True)
class Value:
    """The value of an expression, and the numbers written in it, in order."""

    value: Fraction
    numbers: tuple[int, ...]


def evaluate(text: str) -> Value:
    """The value of an expression. Raises ExpressionError."""
    if len(text) > LONGEST:
        raise ExpressionError(f"longer than {LONGEST} characters")
    parser = _Parser(text.translate(_SAME))
    value = parser.expression(0)
    if parser.next:
        raise ExpressionError(f"{parser.next!r} was not expected")
    return Value(value, tuple(parser.numbers))


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = [digits or sign for digits, sign in _TOKEN.findall(text.strip())]
        self.at = 0
        self.numbers: list[int] = []

    @property
    def next(self) -> str:
        """The next token, "" at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.next
        self.at += 1
        return token

    def expression(self, depth: int) -> Fraction:
        value = self.term(depth)
        while self.next in ("+", "-"):
            value = value + self.term(depth) if self.take() == "+" else value - self.term(depth)
        return value

    def term(self, depth: int) -> Fraction:
        value = self.factor(depth)
        while self.next in ("*", "/"):
            if self.take() == "*":
                value *= self.factor(depth)
            elif divisor := self.factor(depth):
                value /= divisor
            else:
                raise ExpressionError("division by zero")
        return value

    def factor(self, depth: int) -> Fraction:
        if depth > DEEPEST:
            raise ExpressionError(f"more than {DEEPEST} brackets within each other")
        token = self.take()
        if token == "-":
            return -self.factor(depth + 1)
        if token == "(":
            value = self.expression(depth + 1)
            if self.take() != ")":
                raise ExpressionError("a bracket is not closed")
            return value
        if not token.isdecimal():
            raise ExpressionError(f"{token!r} was not expected" if token else "it ends too early")
        self.numbers.append(int(token))
        return Fraction(self.numbers[-1])

"""Evaluates arithmetic exactly: whole numbers, + - * / and brackets. Nothing runs as code."""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 200
"""Longest expression, characters. As there are no powers, it also limits the digits of a value."""

_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})
_ALLOWED = re.compile(r"[0-9+\-*/()\s]+")
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ExpressionError(ValueError):
    """Raised for an invalid expression or a division by zero. The message says what is wrong."""


@dataclass(frozen=True)
class Value:
    """The value of an expression, and the numbers written in it, in order."""

    value: Fraction
    numbers: tuple[int, ...]


def evaluate(text: str) -> Value:
    """Evaluates an expression. Raises ExpressionError."""
    if len(text) > LONGEST:
        raise ExpressionError(f"longer than {LONGEST} characters")
    text = " ".join(text.translate(_SAME).split())
    if strange := _ALLOWED.sub("", text):
        raise ExpressionError(f"unexpected {strange[0]!r}")
    try:
        # Python reads no leading zeros.
        tree = ast.parse(re.sub(r"\b0+(?=\d)", "", text), mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise ExpressionError("a number, a sign or a bracket is missing") from None
    numbers: list[int] = []
    return Value(_value(tree.body, numbers), tuple(numbers))


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    """Evaluates a part of an expression, and appends its numbers to `numbers` in order."""
    match node:
        case ast.Constant(value=int(number)):
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATIONS:
            a, b = _value(left, numbers), _value(right, numbers)
            try:
                return _OPERATIONS[type(sign)](a, b)
            except ZeroDivisionError:
                raise ExpressionError("division by zero") from None
    raise ExpressionError("only numbers, + - * / and brackets are allowed")

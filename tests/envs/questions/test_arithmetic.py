"""Arithmetic on expressions that a policy wrote: exact, and never evaluated as code."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.questions.arithmetic import ExpressionError, evaluate

expressions = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        "({0[0]} {0[1]} {0[2]})".format
    ),
    max_leaves=12,
)


@given(expressions)
def test_the_evaluator_agrees_with_exact_arithmetic(text):
    leaves = __import__("re").sub(r"\d+", lambda m: f"Fraction({m[0]})", text)
    try:
        expected = eval(leaves, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="division by zero"):
            evaluate(text)
        return
    assert evaluate(text).value == expected
    assert len(evaluate(text).numbers) == leaves.count("Fraction")


@given(st.one_of(st.text(max_size=250), st.text("0123456789+-*/() .x", max_size=250)))
def test_the_evaluator_raises_nothing_but_expression_errors(text):
    try:
        assert isinstance(evaluate(text).value, Fraction)
    except ExpressionError as error:
        assert str(error)


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "4//3",
        "2^3",
        "1e9",
        "(1",
        "1)",
        "",
        "1 2",
        "()",
        "import os",
        "(" * 99,
    ],
)
def test_text_that_is_not_arithmetic_is_refused(text):
    with pytest.raises(ExpressionError):
        evaluate(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-3 + 5", 2),
        ("2 × 3 ÷ 4", Fraction(3, 2)),
        ("10 − 4 - 3", 3),
        ("[1+1]*(2)", 4),
        ("- (2)", -2),
        ("007 - -(-(2))", 5),
    ],
)
def test_typographic_signs_are_read_and_equal_operators_go_from_left_to_right(text, value):
    assert evaluate(text).value == value

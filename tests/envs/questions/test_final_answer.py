"""Finding a final answer in a text, and arithmetic on what was written there."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.questions.arithmetic import ExpressionError, evaluate
from envs.questions.final_answer import boxed, stated, tagged


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{3}", "3"),
        (r"\boxed{1} or rather \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\fbox{x^{2}}", "x^{2}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{3", None),
        (r"\boxed{2} and then \boxed{never closed", "2"),
        ("3", None),
        ("", None),
    ],
)
def test_the_last_closed_box_holds_the_answer(text, answer):
    assert boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("Answer: 12", "12"),
        ("**Final answer:** $5$", "$5$"),
        ("The answer is: 1\nThe answer is: 2", "2"),
        ("my answer is 3", None),
        ("#### ", None),
    ],
)
def test_a_stated_answer_follows_its_mark_at_the_beginning_of_a_line(text, answer):
    assert stated(text) == answer


def test_the_last_tag_holds_the_answer():
    assert tagged("<answer>1</answer> no, <ANSWER>\n2\n</ANSWER>") == "2"
    assert tagged("<answer>1") is None


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
def test_the_evaluator_never_raises_anything_of_its_own(text):
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
        "--" * 60 + "1",
    ],
)
def test_what_is_no_arithmetic_is_refused(text):
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
    ],
)
def test_signs_of_print_are_read_and_operators_of_a_kind_go_from_left_to_right(text, value):
    assert evaluate(text).value == value

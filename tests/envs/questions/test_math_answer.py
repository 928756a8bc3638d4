"""A judge says yes to the answer, the whole answer and nothing else."""

import pytest

from benchmarks.math_answers import notations, other_forms, wrong_answers
from envs.questions.datasets import load
from envs.questions.math_answer import compare, number, plain, split
from tests.envs.shared_data import shared

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("6", "not 6"),
        ("6", "5 or 6"),
        ("9", "any number except 9"),
        ("8", r"7 \text{ or } 8"),
        ("6", "1, 2, 3, 4, 5, 6"),
        ("42", "x=41 or x=42"),
        ("4", "3 apples and 4 pears"),
        ("2", "2 2/3"),
        ("10", "4 10/3"),
        ("6", "6 hundred"),
        ("5", "5x"),
        ("6", r"\neq 6"),
        ("6", r"\pm 6"),
        ("12", "1 2"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "2,1"),
        ("[1,2]", "(1,2)"),
        ("1,2", "1,1,2"),
        ("1/3", "0.333"),
        ("x=5", "y=5"),
        (r"\text{east}", "east or west"),
        ("(C)", "B or C"),
        ("3R^2", "3r^2"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        ("0.0000001", "0.0000002"),
        ("204_5", "204_6"),
        ("101_2", "101"),
        ("1000", "1,00,0"),
    ],
)
def test_an_answer_that_only_holds_the_reference_is_not_right(gold, answer):
    assert compare(gold, answer) != "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("8/3", "2 2/3"),
        ("-7/3", r"-2\frac{1}{3}"),
        ("1, 2", "2, 1"),
        ("1,-2", r"1 \text{ and } -2"),
        (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"),
        ("5", "5 cm"),
        ("15", r"15 \text{ cm}^2"),
        ("1300", "1,300"),
        ("1300", "1.3e3"),
        ("0.0000001", "1e-7"),
        ("204_5", "204_{5}"),
        (r"\frac{1}{2^{10}}", "1/1024"),
        (r"\text{(C)}", "C"),
        ("(2,∞)", r"(2, +\infty)"),
        ("10%", "0.1"),
        ("y = 2x + 3", "3 + 2x"),
    ],
)
def test_an_answer_in_another_form_is_right(gold, answer):
    assert compare(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("gsm8k_test.jsonl", 50),
        ("math500.jsonl", 20),
        pytest.param("gsm8k_test.jsonl", 5, marks=pytest.mark.nightly),
        pytest.param("math500.jsonl", 2, marks=pytest.mark.nightly),
    ],
)
def test_no_wrong_form_of_real_references_is_right_and_hardly_any_right_one_is_wrong(name, every):
    golds = [problem.answer for problem in load("math", "eval", str(shared(name)))][::every]
    assert [(g, a) for g in golds for a in wrong_answers(g) if compare(g, a) == "correct"] == []
    right = [(g, a) for g in golds for a in (*notations(g), *other_forms(g))]
    missed = [pair for pair in right if compare(*pair) != "correct"]
    assert len(missed) < len(right) / 100, missed[:20]


def test_a_number_keeps_its_value_in_every_notation():
    for text in ("0.25", "1/4", r"\frac{1}{4}", "2.5e-1", "25%", ".250"):
        assert number(plain(text)) in (0.25, 25)
    assert number("1 5/3") is None and number("1/0") is None and number("x") is None


def test_a_text_is_cut_at_its_outermost_separators():
    assert split("1, (2, 3)").members == ("1", "(2, 3)")
    assert split(r"(2,12) \cup (12,102)").kind == "union"
    assert split("(3,4]").kind == "(]"
    assert split("((5))").members == ("5",)
    assert split(r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}").members == ("1", "2", "3", "4")
